#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ir/edit/bulk_edits.h"
#include "ir/graph_editor.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

// Copying the tables keeps every id, so side tables are valid for both graphs.
Graph clone(const Graph& graph) {
  Graph copy;
  copy.metadata = graph.metadata;
  copy.guards = graph.guards;
  static_cast<GraphTables&>(copy) = graph;
  return copy;
}

NodeCopier::NodeCopier(const Graph& from, Graph& into, RegionId region) : from_(from), into_(into) {
  regions_[Graph::kRootRegion] = region;
}

// Maps a value of the other graph to one of this, and their storages, so that views copied later refer to the right
// place:
//
//     piece: %0 @s0, %1 = t(%0) @s0      into: %7 @s4 +6      bind(%0, %7)      copy of %1: @s4 +6
void NodeCopier::bind(ValueId from, ValueId to) {
  const Value& inner = from_.value(from);
  const Value& outer = into_.value(to);
  if (inner.storage.valid() && outer.storage.valid()) {
    const HomeOfStorage home{.storage = outer.storage, .shift = outer.offset - inner.offset, .bound = true};
    // Two inputs that share a storage must be bound to values that share one at the same distance.
    HomeOfStorage& known = storages_[inner.storage];
    if (known.storage.valid() && (known.storage != home.storage || known.shift != home.shift)) {
      throw GraphError(
          fmt::format("cannot bind value id {}: it shares a storage with another bound value, but their replacements "
                      "do not share one at the same offset",
                      from.index));
    }
    known = home;
  }
  values_[from] = to;
}

// Copies a region with its ancestors that are not copied yet, outermost first, since a parent must have the smaller id.
// The root maps to the region that the piece is copied into.
RegionId NodeCopier::region(RegionId from) {
  std::vector<RegionId> missing;
  RegionId known = from;
  for (; !regions_.contains(known); known = from_.region(known).parent) missing.push_back(known);
  for (size_t i = missing.size(); i-- > 0;) {
    Region copy = from_.region(missing[i]);
    copy.parent = regions_[copy.parent];
    copy.name = into_.intern(from_.text_or_empty(copy.name));
    copy.class_name = into_.intern(from_.text_or_empty(copy.class_name));
    if (copy.target.valid()) copy.target = into_.intern_target(from_.target(copy.target));
    copy.arguments = {};
    // Arguments of a composite may refer to values that are not copied; they only document the call, nothing computes
    // from them.
    std::vector<Argument> arguments;
    for (const Argument& a : from_.region_arguments(missing[i])) arguments.push_back(copy_argument(a, true));
    const RegionId id = into_.add_region(copy);
    if (!arguments.empty()) into_.set_region_arguments(id, arguments);
    regions_[missing[i]] = id;
  }
  return regions_[from];
}

// Copies an argument. With `tolerant`, a value that was not copied becomes invalid.
Argument NodeCopier::copy_argument(const Argument& from, bool tolerant) {
  if (from.kind == ArgumentKind::kValue) {
    const ValueId to = value(from.ref.value);
    if (!to.valid() && !tolerant) {
      throw GraphError(fmt::format("an operand (value id {}) is neither bound nor produced by a node copied before",
                                   from.ref.value.index));
    }
    return Argument::of_value(to);
  }
  // Within one graph constants are shared, so that copying a node copies no tensor.
  if (from.kind == ArgumentKind::kConstant && &from_ != &into_) {
    const auto [to, added] = constants_.try_emplace(from.constant);
    if (added) to->second = into_.share_constant(from_, from.constant);
    return Argument::of_constant(to->second);
  }
  return copied_argument(into_, from_, from, [&](const Argument& e) { return copy_argument(e, tolerant); });
}

// Copies a result: creates the value, and its storage at its first value. A bound storage determines the device, since
// a piece may be spliced into a program on another device.
Argument NodeCopier::copy_result(const Argument& from, NodeId producer) {
  if (from.kind == ArgumentKind::kList) {
    std::vector<Argument> elements;
    for (const Argument& e : from_.list(from)) elements.push_back(copy_result(e, producer));
    return into_.make_list(elements);
  }
  if (from.kind != ArgumentKind::kValue) return from;
  const ValueId id = from.ref.value;
  const Value value = from_.value(id);
  TensorMeta spec = from_.meta(id);
  if (value.storage.valid()) {
    // A storage whose allocating node is not copied is allocated at the first of its values that is.
    HomeOfStorage& known = storages_[value.storage];
    if (!known.storage.valid()) {
      Storage copy = from_.storage(value.storage);
      const NodeId born = copy.born.valid() ? node(copy.born) : NodeId();
      copy.born = born.valid() ? born : producer;
      copy.freed_after = NodeId();
      known.storage = into_.add_storage(copy);
    }
    spec.storage = known.storage;
    spec.offset += known.shift;
    if (known.bound) spec.device = into_.storage(known.storage).device();
  }
  values_[id] = into_.new_value(producer, value.kind, spec);
  return Argument::of_value(values_[id]);
}

NodeId NodeCopier::copy(NodeId from, NodeId position) {
  const Node node = from_.node(from);
  TargetId& target = targets_[node.target];
  if (!target.valid()) target = &from_ == &into_ ? node.target : into_.intern_target(from_.target(node.target));
  std::vector<Argument> arguments;
  for (const Argument& a : from_.arguments(from)) arguments.push_back(copy_argument(a, false));
  const RegionId region = this->region(node.region);
  const NodeId to = into_.insert_before(position, target, arguments);
  nodes_[from] = to;
  Node& copy = mutable_node(into_, to);
  copy.region = region;
  copy.phase = node.phase.index <= Graph::kInit.index ? node.phase : into_.intern_phase(from_.phase_name(node.phase));
  copy.flags = node.flags;
  copy.source = node.source.valid() ? into_.intern(std::string(from_.text_or_empty(node.source))) : StringId();
  // Keeps the forward link if the forward node is copied, too. Within one graph it may also refer to the original.
  if (node.forward.valid()) {
    copy.forward = this->node(node.forward);
    if (!copy.forward.valid() && &from_ == &into_) copy.forward = node.forward;
  }
  std::vector<Argument> results;
  for (const Argument& r : from_.results(from)) results.push_back(copy_result(r, to));
  if (!results.empty()) into_.set_results(to, results);
  // Frees are copied for storages that the copy created. A bound storage belongs to the surrounding graph, which
  // decides when to free it.
  std::vector<StorageId> freed;
  for (StorageId s : from_.frees(from)) {
    const auto home = storages_.find(s);
    if (home != storages_.end() && !home->second.bound) freed.push_back(home->second.storage);
  }
  if (!freed.empty()) into_.set_frees(to, freed);
  std::vector<std::pair<std::string, std::string>> notes;
  from_.for_each_note(from, [&](const std::string& key, const std::string& text) { notes.emplace_back(key, text); });
  // The list is sorted by key, so inserting the last first makes every insertion constant time.
  for (size_t i = notes.size(); i-- > 0;) into_.set_note(to, notes[i].first, notes[i].second);
  if (node.saved.size != 0) copy_saved(from, to);
  return to;
}

// Tensors saved from a later node are not known yet; finish() calls this again.
void NodeCopier::copy_saved(NodeId from, NodeId to) {
  std::vector<SavedTensor> saved;
  for (SavedTensor tensor : from_.saved(from)) {
    tensor.value = value(tensor.value);
    if (tensor.value.valid()) saved.push_back(tensor);
  }
  if (saved.size() != from_.saved(from).size()) unfinished_.push_back(from);
  into_.set_saved(to, saved);
}

void NodeCopier::finish() {
  for (NodeId from : std::exchange(unfinished_, {})) copy_saved(from, node(from));
}

namespace {

// Placeholders other than sg::constant are inputs; a constant belongs to the piece.
bool is_given(const Graph& piece, NodeId n) {
  return piece.is_placeholder(n) && piece.node(n).target != target_of(Builtin::kConstant);
}

// Returns the value of a placeholder; invalid if it has none.
ValueId value_of_placeholder(const Graph& graph, NodeId n) {
  const auto results = graph.results(n);
  return results.size() == 1 && results[0].kind == ArgumentKind::kValue ? results[0].ref.value : ValueId();
}

// Checks everything the piece assumes about an input. Strides and offset matter only if the piece makes views of it,
// whose geometry is recorded as numbers.
void check_input(const Graph& into, NodeId position, const Graph& piece, ValueId formal, ValueId actual) {
  const auto refuse = [&](const std::string& what) {
    throw GraphError(fmt::format("cannot splice: {}:\n  {}", what, to_text(piece, piece.value(formal).producer)));
  };
  if (actual.index >= into.value_capacity() || into.is_erased(into.value(actual).producer)) {
    refuse("the value given for this placeholder does not exist");
  }
  const Value& a = piece.value(formal);
  const Value& b = into.value(actual);
  if (position.valid() && !into.is_before(b.producer, position)) {
    refuse("the value given for this placeholder is not defined before the insertion point");
  }
  if (a.kind != b.kind)
    refuse("the value given for this placeholder is a scalar where a tensor is expected, or the reverse");
  if (a.kind != ValueKind::kTensor) return;
  if (a.dtype != b.dtype || a.device() != b.device() || !std::ranges::equal(piece.sizes(formal), into.sizes(actual))) {
    refuse("the value given for this placeholder, " + type_text(into, actual) + ", has another dtype, device or shape");
  }
  if (!a.storage.valid()) return;
  bool views = false;
  piece.for_each_value_in(a.storage,
                          // Only views that the piece itself makes count; other placeholders on the storage are checked
                          // separately.
                          [&](ValueId v) { views = views || !piece.is_placeholder(piece.value(v).producer); });
  if (!views) return;
  if (!std::ranges::equal(piece.strides(formal), into.strides(actual))) {
    refuse("the value given for this placeholder has other strides, and the piece makes views of it");
  }
  if (!b.storage.valid())
    refuse("the piece makes views of this placeholder, but the value given for it has no storage");
  piece.for_each_value_in(a.storage, [&](ValueId v) {
    const Value& view = piece.value(v);
    const auto extent = extent_of(piece.sizes(v), piece.strides(v));
    if (piece.is_erased(view.producer) || piece.is_placeholder(view.producer) || !extent || *extent == 0) return;
    const int64_t offset = view.offset + b.offset - a.offset;
    if (offset < 0 ||
        (offset + *extent) * static_cast<int64_t>(c10::elementSize(view.dtype)) > into.storage(b.storage).bytes) {
      refuse("a view that the piece makes extends outside the storage of the value given for this placeholder");
    }
  });
}

}  // namespace

std::vector<ValueId> splice(Graph& into, NodeId position, const Graph& piece, std::span<const ValueId> inputs) {
  if (&into == &piece) throw GraphError("cannot splice a graph into itself; clone it first");
  // The position is after the placeholders and before sg::output and sg::gradient, whatever was requested.
  if (!position.valid()) position = InsertionPoint::at_end(into).position();
  while (position.valid() && into.is_placeholder(position)) position = into.node(position).next;
  const NodeId before = position.valid() ? into.node(position).previous : into.last();
  if (before.valid() && is_end(into.node(before).target))
    throw GraphError("cannot splice after sg::output or sg::gradient");

  const RegionId region = position.valid() ? into.node(position).region : Graph::kRootRegion;
  NodeCopier copier(piece, into, region);
  copier.reserve(piece.node_count());
  size_t next = 0;
  for (NodeId n : piece.nodes()) {
    if (piece.node(n).target == target_of(Builtin::kGradient)) {
      throw GraphError("cannot splice a graph with sg::gradient nodes; erase them first");
    }
    if (!is_given(piece, n)) continue;
    const ValueId formal = value_of_placeholder(piece, n);
    if (!formal.valid())
      throw GraphError("cannot splice: a placeholder of the graph has no result:\n  " + to_text(piece, n));
    if (next < inputs.size()) {
      check_input(into, position, piece, formal, inputs[next]);
      copier.bind(formal, inputs[next]);
    }
    ++next;
  }
  if (next != inputs.size()) {
    throw GraphError(
        fmt::format("cannot splice: the graph has {} placeholders, but {} values are given", next, inputs.size()));
  }

  // Constants of the piece go after the existing placeholders, since placeholders come first.
  NodeId past_placeholders = into.first();
  while (past_placeholders.valid() && into.is_placeholder(past_placeholders)) {
    past_placeholders = into.node(past_placeholders).next;
  }
  std::vector<ValueId> outputs;
  for (NodeId n : piece.nodes()) {
    if (is_given(piece, n)) continue;
    if (piece.node(n).target == target_of(Builtin::kOutput)) {
      for (const Argument& list : piece.arguments(n)) {
        if (list.kind != ArgumentKind::kList) continue;
        for (const Argument& a : piece.list(list)) {
          outputs.push_back(a.kind == ArgumentKind::kValue ? copier.value(a.ref.value) : ValueId());
        }
      }
      continue;
    }
    const bool constant = piece.is_placeholder(n);
    const NodeId copy = copier.copy(n, constant ? past_placeholders : position);
    // Storages that the piece reads must live until the copies have read them.
    const auto touch = [&](ValueId v) {
      if (into.value(v).storage.valid()) into.extend_lifetime(into.value(v).storage, copy);
    };
    into.for_each_input(copy, touch);
  }
  copier.finish();
  for (Guard guard : piece.guards) {
    guard.value = copier.value(guard.value);
    if (guard.value.valid()) into.guards.push_back(std::move(guard));
  }
  return outputs;
}

// Values from outside become sg::input; values that other nodes use or save become outputs.
Subgraph extract(const Graph& graph, std::span<const NodeId> nodes) {
  for (NodeId n : nodes) {
    if (graph.is_placeholder(n) || is_end(graph.node(n).target)) {
      throw GraphError("cannot extract a placeholder, sg::output or sg::gradient:\n  " + to_text(graph, n));
    }
  }
  Boundary boundary = boundary_of(graph, nodes);
  Subgraph result{.inputs = std::move(boundary.inputs), .outputs = std::move(boundary.outputs)};
  NodeCopier copier(graph, result.graph);
  // Storages of inputs exist before the piece begins. Inputs that share one share it in the piece, too, so that writes
  // and views have the same effect.
  std::unordered_map<StorageId, StorageId> storages;
  for (size_t i = 0; i < result.inputs.size(); ++i) {
    const ValueId v = result.inputs[i];
    const Argument argument[] = {result.graph.string_argument("x" + std::to_string(i))};
    const NodeId placeholder = result.graph.append(target_of(Builtin::kInput), argument);
    const Value& value = graph.value(v);
    TensorMeta spec = graph.meta(v);
    if (value.storage.valid()) {
      spec.storage = storages[value.storage];
      if (!spec.storage.valid()) {
        Storage copy = graph.storage(value.storage);
        copy.born = placeholder;
        copy.freed_after = NodeId();
        spec.storage = storages[value.storage] = result.graph.add_storage(copy);
      }
    }
    const ValueId made = result.graph.new_value(placeholder, value.kind, spec);
    const Argument results[] = {Argument::of_value(made)};
    result.graph.set_results(placeholder, results);
    copier.bind(v, made);
  }
  for (NodeId n : nodes) copier.copy(n, NodeId());
  copier.finish();
  std::vector<Argument> outputs;
  for (ValueId v : result.outputs) outputs.push_back(Argument::of_value(copier.value(v)));
  const Argument list[] = {result.graph.make_list(outputs)};
  const NodeId end = result.graph.append(target_of(Builtin::kOutput), list);
  // Outputs are returned to the caller, so their storages live to the end.
  result.graph.for_each_input(end, [&](ValueId v) {
    const StorageId storage = result.graph.value(v).storage;
    if (storage.valid()) result.graph.extend_lifetime(storage, end);
  });
  return result;
}

}  // namespace shadowgraph
