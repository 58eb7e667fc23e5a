// Alias and mutation resolution.
//
// One walk in program order builds a new graph. A node that writes nothing is copied, its operands as StorageImages
// says they are to be read now. A node that writes becomes, in this order:
//
//   t_, squeeze_, set_, resize_   no content changes: the view, or nothing at all
//   copy_, fill_, zero_           the new content itself: clone, _to_copy, expand, full
//   x.op_(...), op(..., out=x)    its functional operator, if that gives the same bits: its result is laid out like the
//                                 tensor it replaces, or layout does not matter to it (passes/functional/layout_independence.h), and
//                                 no other operand lies across what is written
//   anything else                 a functional call (core/calls/functional_call.h), which runs the very operator on a copy
//                                 of the storage
//
// The result then becomes the new image of the storage. If it covers all that the program looks at, it is that image,
// otherwise it is scattered into the old one. At the end the placeholders whose storages were written get aten::copy_
// from their images. Outputs that live there are taken from the placeholders again.
//
// Why layout matters: kernels may sum in another order for other strides. Random fills draw in order of memory, or by
// another routine when memory is contiguous. Why a new graph: nodes with all their side lists are only ever appended,
// so every step is as simple and as cheap as recording.
#include <algorithm>
#include <unordered_map>

#include "ir/operators/operator_facts.h"
#include "ir/records.h"
#include "passes/functional/functionalizer.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

// What an opaque object is written to or read from, nobody knows.
bool has_opaque(const Graph& graph, std::span<const Argument> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& a) {
    return a.kind == ArgumentKind::kOpaque || (a.kind == ArgumentKind::kList && has_opaque(graph, graph.list(a)));
  });
}

// What is mutated and aliased, read off a graph without mutation.
void read_signature(const Graph& graph, FunctionalizeResult& result) {
  const auto placeholder_of = [&](ValueId v) {
    const StorageId storage = graph.value(v).storage;
    const NodeId born = storage.valid() ? graph.storage(storage).born : NodeId();
    return born.valid() && !graph.is_erased(born) && is_placeholder(graph.node(born).target) ? born : NodeId();
  };
  NodeId output;
  for (const NodeId n : graph.nodes()) {
    if (graph.node(n).target == target_of(Builtin::kOutput)) output = n;
    if (graph.target(n).name() != "aten::copy_") continue;
    const Argument& self = graph.arguments(n).front();
    if (self.kind == ArgumentKind::kValue) result.mutated.push_back({placeholder_of(self.ref.value), n});
  }
  std::sort(result.mutated.begin(), result.mutated.end(),
            [](const auto& a, const auto& b) { return a.placeholder < b.placeholder; });
  if (!output.valid()) return;
  std::unordered_map<StorageId, uint32_t> first;
  uint32_t position = 0;
  for (const Argument& value : graph.list(graph.arguments(output).front())) {
    const uint32_t at = position++;
    if (value.kind != ArgumentKind::kValue || !graph.value(value.ref.value).storage.valid()) continue;
    const NodeId placeholder = placeholder_of(value.ref.value);
    const auto [entry, added] = first.try_emplace(graph.value(value.ref.value).storage, at);
    if (placeholder.valid()) {
      result.aliased.push_back({at, placeholder, 0});
    } else if (!added) {
      result.aliased.push_back({at, NodeId(), entry->second});
    }
  }
}

}  // namespace

// ---- Nodes that write nothing

// Arguments are read as of now: each through the image of its storage.
std::vector<Argument> Functionalizer::current_arguments(NodeId n) {
  std::vector<Argument> arguments;
  for (const Argument& argument : read_.arguments(n)) {
    arguments.push_back(emitter_.mapped(argument, [&](ValueId v) { return images_.current(v); }));
  }
  return arguments;
}

// Makes results like those of the node that is read. A view lies in its storage's new self; a fresh result gets one.
Argument Functionalizer::result_like(const Argument& result, NodeId made) {
  if (result.kind == ArgumentKind::kList) {
    std::vector<Argument> elements;
    for (const Argument& element : read_.list(result)) elements.push_back(result_like(element, made));
    return made_.make_list(elements);
  }
  if (result.kind != ArgumentKind::kValue) return result;
  const ValueId id = result.ref.value;
  const Value& value = read_.value(id);
  if (value.kind != ValueKind::kTensor) {
    const ValueId scalar = made_.new_scalar(made, value.kind);
    images_.define(id, scalar);
    return Argument::of_value(scalar);
  }
  TensorMeta spec;
  spec.dtype = value.dtype;
  spec.sizes = read_.sizes(id);
  spec.strides = read_.strides(id);
  spec.device = value.device();
  spec.layout = value.layout;
  spec.requires_grad = value.requires_grad;
  spec.offset = value.offset;
  if (value.storage.valid()) {
    spec.storage = images_.storage_of(id);
    if (!spec.storage.valid()) spec.storage = carried_.storage(value.storage, made);
  }
  const ValueId tensor = made_.new_tensor(made, spec);
  images_.define(id, tensor);
  return Argument::of_value(tensor);
}

// A node that writes nothing is the same node on current operands.
void Functionalizer::copy(NodeId n) {
  prepare_saved(n);
  const std::vector<Argument> arguments = current_arguments(n);
  const NodeId made = emitter_.append(carried_.target(read_.node(n).target), arguments);
  std::vector<Argument> results;
  for (const Argument& result : read_.results(n)) results.push_back(result_like(result, made));
  made_.set_results(made, results);
  carried_.node(n, made);
  keep_saved(n, made);
}

// ---- Saved tensors: what autograd keeps from a node is kept from the one that stands for it

// Internal ones may have to be taken again before the node is there.
void Functionalizer::prepare_saved(NodeId n) {
  for (const SavedTensor& saved : read_.saved(n)) {
    if (saved.role == SavedRole::kInternal) images_.current(saved.value);
  }
}

void Functionalizer::keep_saved(NodeId n, NodeId made) {
  carried_.saved(n, made, [&](ValueId v) {
    const ValueId latest = images_.latest(v);
    return latest.valid() ? latest : images_.current(v);
  });
}

// ---- The end

// A row over the storage of a placeholder, which is resized to `bytes`; the placeholder's own geometry stays.
// A placeholder's storage was resized. Its own geometry is the caller's, so a row over the storage is resized instead.
ValueId Functionalizer::longer(ValueId placeholder, int64_t before, int64_t bytes) {
  const StorageId storage = made_.value(placeholder).storage;
  TensorGeometry row = TensorGeometry::of(made_, placeholder);
  row.strides = {1};
  row.offset = 0;
  ValueId alias = placeholder;
  if (bytes % row.itemsize() != 0) {
    row.dtype = at::kByte;
    alias = emitter_.flat(placeholder, at::kByte, before);
  }
  row.sizes = {before / row.itemsize()};
  alias = emitter_.as_strided(alias, row);
  row.sizes = {bytes / row.itemsize()};
  mutable_storage(made_, storage).bytes = std::max(made_.storage(storage).bytes, bytes);
  return emitter_.call(emitter_.target("aten::resize_"),
                       {Argument::of_value(alias), made_.int_list({row.sizes.data(), 1}), Argument::none()}, row,
                       storage);
}

// Copies a placeholder's image back into it, once, at the end of the program. If the placeholder's own view covers all
// that was written, that is one copy_; otherwise the written bytes are copied as a row.
void Functionalizer::write_back(NodeId placeholder) {
  const NodeId made = carried_.made(placeholder);
  const Argument& result = read_.results(placeholder).front();
  const ValueId id = result.ref.value;
  const StorageId storage = read_.value(id).storage;
  // Nothing was written to it, or only what was there.
  if (!storage.valid() || images_.version(storage) == 0) return;
  const Extent& extent = writes_[storage.index];
  const ValueId target = made_.results(made).front().ref.value;
  if (!extent.only.valid() && images_.bytes(storage) == images_.first_bytes(storage)) {
    // Nothing but tensors without elements was written.
    images_.replace(storage, target);
    return;
  }
  const NodeId model = extent.last.valid() ? extent.last : placeholder;
  emitter_.stand_for(model, carried_.made(read_.node(model).forward));
  const StridedView view = view_of(read_, id);
  const auto [begin, end] = view.bytes();
  const bool grown = images_.bytes(storage) > images_.first_bytes(storage);
  const bool fits = !grown && internal_overlap(view) == Overlap::kNone &&
                    ((!extent.several && same_geometry(view, view_of(read_, extent.only))) ||
                     (is_dense(view) && begin <= extent.begin && extent.end <= end));
  const TensorGeometry geometry = TensorGeometry::of(made_, target);
  ValueId to = target;
  ValueId from;
  if (fits) {
    from = images_.current(id);
  } else {
    // The bytes written, as rows: what lies between the views is copied with them, and is what it was.
    TensorGeometry row = geometry;
    row.strides = {1};
    row.offset = 0;
    if (grown) to = longer(target, images_.first_bytes(storage), images_.bytes(storage));
    if (!extent.only.valid()) {
      images_.replace(storage, target);
      return;
    }
    if (extent.begin % row.itemsize() != 0 || extent.end % row.itemsize() != 0) row.dtype = at::kByte;
    const int64_t first = extent.begin / row.itemsize();
    row.sizes = {extent.end / row.itemsize() - first};
    row.offset = first;
    if (made_.value(to).dtype != row.dtype) {
      to = emitter_.flat(to, row.dtype, grown ? images_.bytes(storage) : extent.end);
    }
    to = emitter_.as_strided(to, row);
    from = images_.row(storage, row.dtype, first, row.sizes[0]);
  }
  const TensorGeometry to_geometry = TensorGeometry::of(made_, to);
  const NodeId node = emitter_.append(emitter_.target("aten::copy_"),
                                      {Argument::of_value(to), Argument::of_value(from), Argument::of_bool(false)});
  emitter_.add_result(node, to_geometry, made_.value(target).storage);
  // The copy belongs to no module and differentiates nothing: it is not the user's.
  mutable_node(made_, node).region = Graph::kRootRegion;
  mutable_node(made_, node).forward = NodeId();
  images_.replace(storage, target);
}

void Functionalizer::epilogue() {
  for (const NodeId n : placeholders_) write_back(n);
}

// Arguments of the ends are read before the first end is made, since reading may make views.
void Functionalizer::ends() {
  std::vector<std::vector<Argument>> arguments;
  for (const NodeId n : ends_) {
    emitter_.stand_for(n, NodeId());
    arguments.push_back(current_arguments(n));
  }
  for (size_t i = 0; i < ends_.size(); ++i) {
    emitter_.stand_for(ends_[i], NodeId());
    carried_.node(ends_[i], emitter_.append(carried_.target(read_.node(ends_[i]).target), arguments[i]));
  }
}

// ---- The walk

// Regions are entered before anything is made in them; their arguments are values as of now.
void Functionalizer::node(NodeId n) {
  const TargetId target = read_.node(n).target;
  carried_.enter_region(read_.node(n).region, [&](ValueId v) { return images_.latest(v); });
  if (is_end(target)) {
    ends_.push_back(n);
    return;
  }
  emitter_.stand_for(n, carried_.made(read_.node(n).forward));
  if (is_placeholder(target)) placeholders_.push_back(n);
  if (target == target_of(Builtin::kAlias)) {
    // Once written, a storage is looked at through its image; what the alias is then is found when it is read.
    const Argument& source = read_.arguments(n).front();
    const StorageId storage = source.kind == ArgumentKind::kValue ? read_.value(source.ref.value).storage : StorageId();
    // An alias of a written storage stands for nothing any more.
    if (storage.valid() && images_.version(storage) != 0) return;
  }
  const OperatorFacts& facts = read_.facts(target);
  if (read_.target(n).signature().name == "aten::set_") {
    // What set_ without a source gives has no other maker; the end may be too late, behind what is written back.
    if (read_.arguments(n).size() == 1) read_.for_each_output(n, [&](ValueId v) { images_.current(v); });
    return;
  }
  // An unknown node may write to anything that it is given, so nothing that follows would be known.
  if (facts.unknown || has_opaque(read_, read_.arguments(n))) {
    bool tensors = false;
    read_.for_each_input(n, [&](ValueId v) { tensors = tensors || read_.value(v).kind == ValueKind::kTensor; });
    if (tensors) fail(n, "nothing is known of what this writes; functionalize before it is recorded, or keep it out");
  }
  if (!facts.written.empty() && writes_now(read_, n, facts)) return write(n);
  copy(n);
}

FunctionalizeResult Functionalizer::run() {
  for (const NodeId n : read_.nodes()) {
    node(n);
    carried_.done(n);
  }
  epilogue();
  ends();
  // Lives follow the new values: an image dies when the storage that it stands for died.
  carried_.finish(
      [&](ValueId v) { return images_.latest(v); },
      [&](StorageId s) { return images_.has_image(s) ? made_.value(images_.base(s)).storage : StorageId(); });
  result_.views = images_.views_taken();
  result_.changed = true;
  return std::move(result_);
}

NodeId first_mutation(const Graph& graph) {
  const auto writes = [&](NodeId n) {
    const OperatorFacts& f = graph.facts(n);
    if (f.unknown) return true;
    if (f.written.empty() || !writes_now(graph, n, f)) return false;
    bool any = false;
    for (const uint16_t position : f.written) {
      if (position >= graph.arguments(n).size()) continue;
      graph.for_each_value(graph.arguments(n).subspan(position, 1), [&](ValueId) { any = true; });
    }
    return any;
  };
  // The epilogue from its end: views, and writes to placeholders from what is none of them.
  std::vector<bool> written(graph.storage_count());
  NodeId last = graph.last();
  for (; last.valid(); last = graph.node(last).previous) {
    const TargetId target = graph.node(last).target;
    if (is_end(target)) continue;
    const OperatorFacts& f = graph.facts(target);
    if (f.is_view && !f.unknown) continue;
    const std::string& name = graph.target(last).name();
    const auto arguments = graph.arguments(last);
    if (name != "aten::copy_" && name != "aten::resize_") break;
    if (arguments[0].kind != ArgumentKind::kValue) break;
    const StorageId storage = graph.value(arguments[0].ref.value).storage;
    if (!storage.valid()) break;
    const NodeId born = graph.storage(storage).born;
    if (!born.valid() || graph.is_erased(born) || !is_placeholder(graph.node(born).target)) break;
    if (name == "aten::copy_") {
      // One copy a storage, and from none that the epilogue writes.
      if (written[storage.index]) break;
      written[storage.index] = true;
      if (arguments[1].kind != ArgumentKind::kValue) break;
      const StorageId source = graph.value(arguments[1].ref.value).storage;
      if (source.valid() && (source == storage || written[source.index])) break;
    }
  }
  const NodeId stop = last.valid() ? graph.node(last).next : graph.first();
  for (NodeId n = graph.first(); n.valid() && n != stop; n = graph.node(n).next) {
    if (writes(n)) return n;
  }
  return {};
}

FunctionalizeResult functionalize(Graph& graph) {
  FunctionalizeResult result;
  if (first_mutation(graph).valid()) {
    Functionalizer functionalizer(graph);
    result = functionalizer.run();
    graph = functionalizer.take_graph();
  }
  read_signature(graph, result);
  return result;
}

PassResult FunctionalizeResult::summary() const {
  return {.changed = changed,
          .counters = {{"writes", writes},
                       {"scatters", scatters},
                       {"views", views},
                       {"functional_calls", functional_calls},
                       {"write_backs", static_cast<int64_t>(mutated.size())},
                       {"aliased_outputs", static_cast<int64_t>(aliased.size())}}};
}

}  // namespace shadowgraph
