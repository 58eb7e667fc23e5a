// Removes aliasing and mutation from a graph.
//
// One walk in program order builds a new graph. A node that writes nothing is copied, with the current values of its
// operands (StorageImages). A node that writes is replaced, in this order of preference, by:
//
//   t_, squeeze_, set_, resize_   contents do not change: the view, or nothing
//   copy_, fill_, zero_           the new contents: clone, _to_copy, expand, full
//   x.op_(...), op(..., out=x)    the functional operator, if it computes the same bits: its result has the layout of
//                                 the tensor it replaces, or does not depend on layout (passes/functional/lazy_bits.h),
//                                 and no other operand overlaps the written tensor
//   anything else                 a functional call (core/calls/functions.h), which runs the original operator on a
//                                 copy of the storage
//
// The result becomes the new image of the storage: directly if it covers all of the storage that the program reads,
// otherwise scattered into the old image. At the end, aten::copy_ writes the images back to placeholders whose storages
// were written. Outputs in those storages are taken from the placeholders again.
//
// Layout matters because kernels may sum in another order for other strides, and random fills draw in memory order, or
// use another routine for contiguous memory.
#include <c10/util/strides.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "ir/records.h"
#include "passes/functional/lazy_bits.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/functional.h"

namespace shadowgraph {

namespace {

// Returns whether a view's arguments are relative to the storage rather than the source.
bool is_absolute(const Target& target) {
  const OperatorFacts& facts = target.facts();
  return target.name() == "aten::as_strided" || target.name() == "aten::as_strided_" || target.name() == "sg::alias" ||
         facts.takes_storage || facts.resizes;
}

// Returns the scatter operator that mirrors a view; nullptr if there is none.
const char* scatter_of(std::string_view view) {
  if (view == "aten::slice.Tensor") return "aten::slice_scatter";
  if (view == "aten::select.int") return "aten::select_scatter";
  return view == "aten::diagonal" ? "aten::diagonal_scatter" : nullptr;
}

// Tracks the contents of every storage at the current point of a rewriting pass, as values of the new graph.
//
// The *image* of a storage is a value whose storage has the same bytes at the same offsets. It is initially the value
// that allocated the storage. current(v) returns the value to read instead of v at this point: the value that replaced
// v, if the storage has not been written since, otherwise a view of the image (the program's, or as_strided).
class StorageImages {
 public:
  StorageImages(const Graph& read, Graph& made, NodeEmitter& emitter)
      : old_(read), new_(made), emitter_(emitter), aliases_(AliasAnalysis::of(read)), bits_(lazy_bits_of(read)) {
    images_.resize(read.storage_count());
    find_resized();
  }

  // Returns the value to be read at this point; emits views if its storage was written since.
  ValueId current(ValueId id) {
    const Now now = std::as_const(now_)[id];
    const StorageId storage = old_.value(id).storage;
    if (!storage.valid()) {
      if (!now.value.valid()) {
        throw UnsupportedError("reads a value without a producer: " + to_text(old_, old_.value(id).producer),
                               old_.value(id).producer);
      }
      return now.value;
    }
    Image& image = images_[storage.index];
    const auto is_current = [&](ValueId v) {
      const Now n = std::as_const(now_)[v];
      return n.value.valid() && n.version == image.version;
    };
    if (is_current(id)) return now.value;
    if (!image.base.valid()) return base_of_nothing(id);

    // Goes back through the views to one that is current or is the image itself, then forward again.
    c10::SmallVector<std::pair<ValueId, Step>, kMaxViews> path;
    ValueId at = id;
    while (!is_current(at)) {
      if (is_base(at, image)) {
        now_[at] = {image.base, image.version};
        break;
      }
      const Step step = step_to(at);
      if (path.size() == kMaxViews && step.source.valid()) {
        path.clear();
        at = id;
      } else if (step.source.valid()) {
        path.emplace_back(at, step);
        at = step.source;
        continue;
      }
      now_[at] = {from_base(at), image.version};
    }
    while (!path.empty()) {
      const auto [value, step] = path.back();
      path.pop_back();
      now_[value] = {take(value, step), image.version};
    }
    return now_[id].value;
  }

  // As current(), but emits nothing, so the value may be outdated; invalid if there is none.
  ValueId latest(ValueId id) const {
    const StorageId storage = old_.value(id).storage;
    if (storage.valid() && has_image(storage) && is_base(id, images_[storage.index])) return base(storage);
    return now_[id].value;
  }

  // Records that `made` is the new value for the result `id` of a copied or replaced node. The first value in a storage
  // becomes its image; later ones are views of it at the current version.
  void define(ValueId id, ValueId made) {
    const Value& value = old_.value(id);
    if (!value.storage.valid()) {
      now_[id] = {made, 0};
      return;
    }
    Image& image = images_[value.storage.index];
    if (!image.base.valid()) {
      image.base = made;
      const int64_t reached = view_of(old_, id).bytes().second;
      image.bytes = image.resized ? reached : std::max(reached, old_.storage(value.storage).bytes);
      image.first_bytes = image.bytes;
    }
    now_[id] = {made, image.version};
  }

  // Returns the storage of a result in the new graph: that of the image, if it aliases one; otherwise invalid.
  StorageId storage_of(ValueId id) const {
    const StorageId storage = old_.value(id).storage;
    return storage.valid() && has_image(storage) ? new_.value(base(storage)).storage : StorageId();
  }

  bool has_image(StorageId storage) const { return images_[storage.index].base.valid(); }
  uint32_t version(StorageId storage) const { return images_[storage.index].version; }
  ValueId base(StorageId storage) const { return images_[storage.index].base; }
  // Returns whether a value is a lazy conjugate or negative of the stored elements.
  bool has_bits(ValueId value) const { return bits_[value] != 0; }

  // Overwrites the elements of `view` with `content`, of its dtype and sizes. Returns whether a scatter was needed.
  bool write(ValueId view, ValueId content) {
    const Value& value = old_.value(view);
    const StorageId storage = value.storage;
    if (old_.numel(view) == 0) return false;
    // Store the values without the lazy bits: the conjugate of the conjugate.
    if (bits_[view] & kConjugateBit) content = emitter_.call("aten::conj_physical", {Argument::of_value(content)});
    if (bits_[view] & kNegativeBit) content = emitter_.call("aten::neg", {Argument::of_value(content)});
    if (replaces(view)) {
      const auto laid_out_alike = [&](ValueId v) { return same_elements(view_of(new_, v), view_of(old_, view)); };
      if (!laid_out_alike(content)) {
        if (const ValueId clone = clone_with_strides_of(view, content); clone.valid()) content = clone;
      }
      if (laid_out_alike(content)) {
        replace(storage, content);
        // The image only covers the part of the storage that the program reads.
        images_[storage.index].bytes = view_of(old_, view).bytes().second;
        return false;
      }
    }
    if (const auto scattered = scatter_by_view(view, content)) {
      replace(storage, *scattered);
      return true;
    }
    const int64_t end = view_of(old_, view).bytes().second;
    // A storage that is not a whole number of elements is scattered in smaller units.
    TensorGeometry target = TensorGeometry::of(old_, view);
    if (ends_within(storage, target.itemsize())) content = in_bytes(content, target);
    ValueId base = base_as(storage, target.dtype, end);
    // Scattering into a tensor that visits bytes twice is undefined.
    if (internal_overlap(view_of(new_, base)) != Overlap::kNone) {
      base = emitter_.flat(base, target.dtype, std::max(end, images_[storage.index].bytes));
    }
    const NodeId node =
        emitter_.append(emitter_.target("aten::as_strided_scatter"),
                        {Argument::of_value(base), Argument::of_value(content), new_.int_list(target.sizes),
                         new_.int_list(target.strides), Argument::of_int(target.offset)});
    const TensorGeometry result = TensorGeometry::of(new_, base);
    const StorageId made_storage = emitter_.add_storage(node, result, new_.storage(new_.value(base).storage).bytes);
    replace(storage, emitter_.add_result(node, result, made_storage));
    return true;
  }

  // Returns whether a write of `view` replaces everything that the program reads in its storage.
  bool covers(ValueId id) const {
    const StorageId storage = old_.value(id).storage;
    const StridedView view = view_of(old_, id);
    const auto [begin, end] = view.bytes();
    const auto [first, last] = aliases_.bytes_used(storage);
    return begin <= first && last <= end && is_dense(view);
  }

  // Returns whether, in addition, a newly allocated tensor with the layout of `view` can replace the image.
  bool replaces(ValueId view) const { return old_.value(view).offset == 0 && covers(view); }
  // Replaces the storage's image by `whole`, grown to at least `bytes`, and invalidates earlier views.
  void replace(StorageId storage, ValueId whole, int64_t bytes = 0) {
    Image& image = images_[storage.index];
    image.base = whole;
    image.bytes = std::max(image.bytes, bytes);
    ++image.version;
  }

  // Size of the storage in bytes, initially and now.
  int64_t first_bytes(StorageId storage) const { return images_[storage.index].first_bytes; }
  int64_t bytes(StorageId storage) const { return images_[storage.index].bytes; }

  // Returns elements [first, first + count) of the storage as a 1-D tensor of `dtype`.
  ValueId row(StorageId storage, c10::ScalarType dtype, int64_t first, int64_t count) {
    const ValueId base = base_as(storage, dtype, (first + count) * static_cast<int64_t>(c10::elementSize(dtype)));
    return emitter_.as_strided(
        base, {.dtype = dtype, .sizes = {count}, .strides = {1}, .offset = first, .device = new_.value(base).device()});
  }

  int64_t view_count() const { return views_; }

 private:
  struct Image {
    ValueId base;
    uint32_t version = 0;
    int64_t first_bytes = 0;
    int64_t bytes = 0;
    bool resized = false;  // resized by some node: the recorded bytes are those of its final state
    ValueId converted;     // the image as a 1-D tensor of another dtype, at `converted_version`
    uint32_t converted_version = 0;
    int64_t converted_bytes = 0;
  };
  // The new value for a value of the old graph, and the version of its storage at which it is valid.
  struct Now {
    ValueId value;
    uint32_t version = 0;
  };
  // Derivation of a value from another one in the same storage, by a view that can be recreated.
  struct Step {
    ValueId source;
    bool same = false;  // the result of an in-place operator, identical to its source
  };
  static constexpr size_t kMaxViews = 8;  // limit of a chain of views; one as_strided is shorter

  // Collects facts about the whole program in advance: resized storages, whose size is unknown until the last resize,
  // and the operands that in-place operators return as results (origins_).
  void find_resized() {
    for (const NodeId n : old_.nodes()) {
      const OperatorFacts& facts = old_.facts(n);
      const auto arguments = old_.arguments(n);
      const auto results = old_.results(n);
      for (const OperatorFacts::Alias& alias : facts.aliases) {
        if (alias.result >= results.size() || alias.argument >= arguments.size()) continue;
        if (arguments[alias.argument].kind != ArgumentKind::kValue) continue;
        const ValueId source = arguments[alias.argument].ref.value;
        old_.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
          if (old_.value(v).storage != old_.value(source).storage) return;
          const bool same_bits = bits_[v] == bits_[source];
          if (!facts.written.empty() && same_bits && old_.value(v).dtype == old_.value(source).dtype &&
              same_geometry(view_of(old_, v), view_of(old_, source))) {
            const ValueId origin = std::as_const(origins_)[source];
            origins_[v] = origin.valid() ? origin : source;
          }
          // resize_, or an `out=` tensor that was resized.
          if (!facts.written.empty() && old_.value(v).storage.valid() && !is_absolute(old_.target(n)) &&
              !std::ranges::equal(old_.sizes(v), old_.sizes(source)) && facts.is_out_variant) {
            images_[old_.value(v).storage.index].resized = true;
          }
        });
      }
      if (facts.resizes) {
        old_.for_each_output(n, [&](ValueId v) {
          if (old_.value(v).storage.valid()) images_[old_.value(v).storage.index].resized = true;
        });
      }
    }
  }

  // Returns the view that produced `id`, if it can be recreated from its source alone.
  Step step_to(ValueId id) {
    const NodeId producer = old_.value(id).producer;
    const OperatorFacts& facts = old_.facts(producer);
    const auto arguments = old_.arguments(producer);
    const auto results = old_.results(producer);
    if (facts.aliases.empty() || facts.collective || results.size() != 1 || results[0].kind != ArgumentKind::kValue)
      return {};
    const OperatorFacts::Alias& alias = facts.aliases.front();
    if (alias.argument >= arguments.size() || arguments[alias.argument].kind != ArgumentKind::kValue) return {};
    const ValueId source = arguments[alias.argument].ref.value;
    if (old_.value(source).storage != old_.value(id).storage) return {};
    // An in-place result is its operand under another name.
    if (const ValueId origin = std::as_const(origins_)[id]; origin.valid()) return {origin, true};
    if (is_absolute(old_.target(producer))) return {};
    if (!facts.written.empty()) {
      const FunctionalForm* form = functional_form(old_.target(producer));
      if (form == nullptr || !form->target.facts().is_view) return {};
    }
    // Other tensor arguments would have to be read again, too.
    uint32_t tensors = 0;
    old_.for_each_input(producer, [&](ValueId) { ++tensors; });
    return tensors == 1 ? Step{source, false} : Step{};
  }

  // Returns whether a value is the image itself, so that no view is needed.
  bool is_base(ValueId id, const Image& image) const {
    const Value& a = old_.value(id);
    const Value& b = new_.value(image.base);
    return a.dtype == b.dtype && a.offset == b.offset && bits_[id] == 0 &&
           std::ranges::equal(old_.sizes(id), new_.sizes(image.base)) &&
           std::ranges::equal(old_.strides(id), new_.strides(image.base));
  }

  // Recreates the program's view `id` from the current value of its source. This keeps the graph readable.
  ValueId take(ValueId id, const Step& step) {
    const ValueId source = now_[step.source].value;
    if (step.same) return source;
    const NodeId producer = old_.value(id).producer;
    const FunctionalForm* form = functional_form(old_.target(producer));
    const Target& target = form != nullptr ? form->target : old_.target(producer);
    const auto arguments = emitter_.mapped(old_.arguments(producer), [&](ValueId) { return source; });
    ++views_;
    const NodeId node = emitter_.append(new_.intern_target(target), arguments);
    return emitter_.add_result(node, TensorGeometry::of(old_, id), new_.value(source).storage,
                               old_.value(id).requires_grad);
  }

  // Takes any view in one step by its strides. Lazy bits are not part of the geometry and are applied afterwards.
  ValueId from_base(ValueId id) {
    const Value& value = old_.value(id);
    const TensorGeometry geometry = TensorGeometry::of(old_, id);
    ++views_;
    ValueId result =
        emitter_.as_strided(base_as(value.storage, value.dtype, view_of(old_, id).bytes().second), geometry);
    const StorageId storage = new_.value(result).storage;
    const uint8_t bits = bits_[id];
    if (bits & kConjugateBit) result = emitter_.call("aten::_conj", {Argument::of_value(result)}, geometry, storage);
    if (bits & kNegativeBit) result = emitter_.call("aten::_neg_view", {Argument::of_value(result)}, geometry, storage);
    return result;
  }

  // Returns the image as a tensor of `dtype` from which views of the first `bytes` can be taken. The size of a resized
  // storage is unknown; the maximum of what was read so far is used.
  ValueId base_as(StorageId storage, c10::ScalarType dtype, int64_t bytes) {
    Image& image = images_[storage.index];
    if (new_.value(image.base).dtype == dtype) return image.base;
    image.bytes = std::max(image.bytes, bytes);
    // A conversion is reused until the image changes, since programs read several views in a row.
    if (image.converted.valid() && image.converted_version == image.version && image.converted_bytes >= bytes &&
        new_.value(image.converted).dtype == dtype) {
      return image.converted;
    }
    image.converted = emitter_.flat(image.base, dtype, image.bytes);
    image.converted_version = image.version;
    image.converted_bytes = image.bytes;
    return image.converted;
  }

  // A tensor without elements may be on a storage without an allocating node (set_()), so only its geometry is used.
  ValueId base_of_nothing(ValueId id) {
    const Value& value = old_.value(id);
    if (old_.numel(id) != 0) {
      throw UnsupportedError("reads a storage that no node of the graph allocates: " + to_text(old_, value.producer) +
                                 "; give its contents by an operator or as an input of the program",
                             value.producer);
    }
    TensorGeometry geometry = TensorGeometry::of(old_, id);
    geometry.offset = 0;
    const ValueId made = emitter_.call("aten::empty_strided",
                                       {new_.int_list(old_.sizes(id)), new_.int_list(old_.strides(id)),
                                        Argument::of_int(static_cast<int64_t>(value.dtype)), Argument::none(),
                                        Argument::of_device(value.device()), Argument::none()},
                                       geometry);
    define(id, made);
    return made;
  }

  // Adds a dimension over the bytes of an element, to scatter into storages with an odd number of bytes.
  ValueId in_bytes(ValueId content, TensorGeometry& target) {
    const int64_t item = target.itemsize();
    content = emitter_.call("aten::clone", {Argument::of_value(content), Argument::of_int(0)});
    const StorageId storage = new_.value(content).storage;
    TensorGeometry bytes = TensorGeometry::of(new_, content);
    bytes.sizes.push_back(1);
    bytes.strides.push_back(1);
    content = emitter_.call("aten::unsqueeze",
                            {Argument::of_value(content), Argument::of_int(static_cast<int64_t>(target.sizes.size()))},
                            bytes, storage);
    bytes.dtype = at::kByte;
    bytes.sizes.back() = item;
    for (int64_t& stride : bytes.strides) stride *= item;
    bytes.strides.back() = 1;
    content =
        emitter_.call("aten::view.dtype",
                      {Argument::of_value(content), Argument::of_int(static_cast<int64_t>(at::kByte))}, bytes, storage);
    target.dtype = at::kByte;
    for (int64_t& stride : target.strides) stride *= item;
    target.offset *= item;
    target.sizes.push_back(item);
    target.strides.push_back(1);
    return content;
  }

  // Returns whether the storage's size may not be a multiple of this element size. A resized one's is unknown.
  bool ends_within(StorageId storage, int64_t item) const {
    const Image& image = images_[storage.index];
    const Value& base = new_.value(image.base);
    if (image.resized && item > static_cast<int64_t>(c10::elementSize(base.dtype))) return true;
    return new_.storage(base.storage).bytes % item != 0;
  }

  // Writes a part by the scatter that matches the view: x[1:3] = content becomes slice_scatter(x, content, 0, 1, 3),
  // where x is the whole storage. Reinplace can recover the slice. Others use as_strided_scatter.
  std::optional<ValueId> scatter_by_view(ValueId view, ValueId content) {
    if (const ValueId origin = std::as_const(origins_)[view]; origin.valid()) view = origin;
    const NodeId producer = old_.value(view).producer;
    const char* const scatter = scatter_of(old_.target(producer).name());
    if (scatter == nullptr || bits_[view] != 0) return std::nullopt;
    const Step step = step_to(view);
    if (!step.source.valid() || !covers(step.source) || bits_[step.source] != 0) return std::nullopt;
    if (ends_within(old_.value(view).storage, TensorGeometry::of(old_, view).itemsize())) return std::nullopt;
    const ValueId whole = current(step.source);
    std::vector<Argument> arguments;
    for (const Argument& argument : old_.arguments(producer)) {
      if (argument.kind != ArgumentKind::kValue) {
        arguments.push_back(emitter_.copied(argument));
        continue;
      }
      if (argument.ref.value != step.source) return std::nullopt;
      arguments.push_back(Argument::of_value(whole));
      arguments.push_back(Argument::of_value(content));
    }
    const NodeId node = emitter_.append(emitter_.target(scatter), arguments);
    const TensorGeometry geometry = TensorGeometry::of(new_, whole);
    const StorageId storage = emitter_.add_storage(node, geometry, new_.storage(new_.value(whole).storage).bytes);
    return emitter_.add_result(node, geometry, storage);
  }

  // Returns `content` with the layout of `view`, if a clone can do that; clones are contiguous here.
  ValueId clone_with_strides_of(ValueId view, ValueId content) {
    const auto sizes = old_.sizes(view);
    const auto strides = old_.strides(view);
    const auto contiguous = c10::contiguous_strides(sizes);
    if (!same_elements({sizes, strides, 0, 1}, {sizes, {contiguous.data(), contiguous.size()}, 0, 1})) return {};
    return emitter_.call("aten::clone", {Argument::of_value(content), Argument::of_int(0)});
  }

  const Graph& old_;
  Graph& new_;
  NodeEmitter& emitter_;
  AliasAnalysis aliases_;
  std::vector<Image> images_;
  IdMap<ValueId, Now> now_;
  const IdMap<ValueId, uint8_t> bits_;
  IdMap<ValueId, ValueId> origins_;  // by in-place result: the original value of the same geometry
  int64_t views_ = 0;
};

// Effects on opaque objects are unknown.
bool has_opaque(const Graph& graph, std::span<const Argument> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& a) {
    return a.kind == ArgumentKind::kOpaque || (a.kind == ArgumentKind::kList && has_opaque(graph, graph.list(a)));
  });
}

class Functionalizer {
 public:
  explicit Functionalizer(const Graph& graph)
      : old_(graph),
        emitter_(graph, new_),
        images_(graph, new_, emitter_),
        carried_(graph, new_),
        writes_(graph.storage_count()) {}

  // The old graph is only replaced when the new one is complete, so an exception leaves it unchanged.
  FunctionalizeResult run() {
    for (const NodeId n : old_.nodes()) {
      node(n);
      carried_.done(n);
    }
    for (const NodeId n : placeholders_) write_back(n);
    ends();
    // Lifetimes follow the new values: an image is freed where its storage was.
    carried_.finish(
        [&](ValueId v) { return images_.latest(v); },
        [&](StorageId s) { return images_.has_image(s) ? new_.value(images_.base(s)).storage : StorageId(); });
    result_.views = images_.view_count();
    result_.changed = true;
    return std::move(result_);
  }

  Graph take_graph() { return std::move(new_); }

 private:
  // A written argument and the tensor value after the write.
  struct Written {
    uint16_t position = 0;
    ValueId before;
    ValueId after;  // has the written geometry: the aliasing result if there is one
  };

  void node(NodeId n) {
    const TargetId target = old_.node(n).target;
    carried_.enter_region(old_.node(n).region, [&](ValueId v) { return images_.latest(v); });
    if (is_end(target)) {
      ends_.push_back(n);
      return;
    }
    emitter_.stand_for(n, carried_.replacement_of(old_.node(n).forward));
    if (is_placeholder(target)) placeholders_.push_back(n);
    if (target == target_of(Builtin::kAlias)) {
      // Once written, a storage is read through its image; the alias is then taken when it is read.
      const Argument& source = old_.arguments(n).front();
      const StorageId storage =
          source.kind == ArgumentKind::kValue ? old_.value(source.ref.value).storage : StorageId();
      // An alias of a written storage has no value to map to.
      if (storage.valid() && images_.version(storage) != 0) return;
    }
    const OperatorFacts& facts = old_.facts(target);
    if (old_.target(n).signature().name == "aten::set_") {
      // The result of set_ without a source has no other producer, and must not come after the write-backs.
      if (old_.arguments(n).size() == 1) old_.for_each_output(n, [&](ValueId v) { images_.current(v); });
      return;
    }
    // An unknown node may write to any of its operands, so nothing after it could be rewritten.
    if (facts.unknown || has_opaque(old_, old_.arguments(n))) {
      bool tensors = false;
      old_.for_each_input(n, [&](ValueId v) { tensors = tensors || old_.value(v).kind == ValueKind::kTensor; });
      if (tensors)
        fail(n, "the effects of this operator are unknown; declare them in its schema, or exclude it from the graph");
    }
    if (!facts.written.empty() && writes_now(old_, n, facts)) return write(n);
    copy(n);
  }

  // A node that writes nothing is copied with its current operands.
  void copy(NodeId n) {
    prepare_saved(n);
    const std::vector<Argument> arguments = current_arguments(n);
    const NodeId made = emitter_.append(carried_.target(old_.node(n).target), arguments);
    new_.set_results(made, emitter_.mapped(old_.results(n), [&](ValueId v) { return define_like(v, made); }));
    carried_.node(n, made);
    keep_saved(n, made);
  }

  // Returns whether a write only changes the geometry. Such nodes are removed, and later reads use the new view.
  bool metadata(NodeId n, std::span<const Written> written) {
    const OperatorFacts& facts = old_.facts(n);
    if (facts.takes_storage) return true;
    const std::string& name = old_.target(n).signature().name;
    if (name == "aten::as_strided_" || name == "aten::requires_grad_") return true;
    if (facts.resizes) {
      return std::none_of(written.begin(), written.end(), [&](const Written& w) { return exceeds_storage(w); });
    }
    const FunctionalForm* form = functional_form(old_.target(n));
    if (form == nullptr || !form->target.facts().is_view) return false;
    old_.for_each_output(n, [&](ValueId v) { images_.current(v); });
    return true;
  }

  // Returns whether a copy_ reads a lazy negative of another dtype. It converts first and negates afterwards, so
  // imaginary parts become -0; a clone, which other operators read, negates first.
  bool copies_lazily(NodeId n) const {
    if (old_.target(n).name() != "aten::copy_") return false;
    const auto arguments = old_.arguments(n);
    if (arguments[0].kind != ArgumentKind::kValue || arguments[1].kind != ArgumentKind::kValue) return false;
    const ValueId source = arguments[1].ref.value;
    return images_.has_bits(source) && old_.value(source).dtype != old_.value(arguments[0].ref.value).dtype;
  }

  // Returns whether the written tensor is larger than the storage was, as after resize_ and with `out=`.
  bool exceeds_storage(const Written& w) const {
    return view_of(old_, w.after).bytes().second > images_.bytes(old_.value(w.before).storage);
  }

  void write(NodeId n) {
    const std::vector<Written> written = written_by(n);
    if (written.empty()) return copy(n);
    for (const Written& w : written) {
      const Value& value = old_.value(w.before);
      if (!value.storage.valid() || value.layout != c10::Layout::Strided) {
        fail(n, "writes a tensor without strides; only strided tensors can be functionalized");
      }
    }
    if (metadata(n, written)) return;
    ++result_.writes;
    // Records the extent of the writes in each storage; the epilogue only copies that much back.
    for (const Written& w : written) {
      Extent& extent = writes_[old_.value(w.before).storage.index];
      const auto [begin, end] = view_of(old_, w.after).bytes();
      extent.last = n;
      if (begin == end) continue;
      if (!extent.only.valid()) {
        extent = {begin, end, w.after, false, n};
      } else {
        extent.begin = std::min(extent.begin, begin);
        extent.end = std::max(extent.end, end);
        if (!same_geometry(view_of(old_, extent.only), view_of(old_, w.after))) extent.several = true;
      }
    }
    prepare_saved(n);
    if (written.size() == 1 && write_contents(n, written.front())) return;
    // aten::resize returns a tensor of the new size; the storage keeps its contents.
    const bool resizes = old_.facts(n).resizes;
    const FunctionalForm* form = functional_form(old_.target(n));
    if (form != nullptr && !resizes && !form->target.facts().is_view && may_reorder(n, *form, written) &&
        write_functionally(n, *form, written)) {
      return;
    }
    call_functionally(n, written);
  }

  // Pairs every written argument with the result that aliases it, since `out=` and resize_ may change the geometry.
  std::vector<Written> written_by(NodeId n) {
    const OperatorFacts& facts = old_.facts(n);
    const auto arguments = old_.arguments(n);
    const auto results = old_.results(n);
    std::vector<Written> written;
    for (const uint16_t position : facts.written) {
      if (position >= arguments.size()) continue;
      const size_t first = written.size();
      old_.for_each_value(arguments.subspan(position, 1), [&](ValueId v) { written.push_back({position, v, v}); });
      for (const OperatorFacts::Alias& alias : facts.aliases) {
        if (alias.argument != position || alias.result >= results.size()) continue;
        size_t i = first;
        old_.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
          if (i < written.size() && old_.value(v).storage == old_.value(written[i].before).storage) {
            written[i++].after = v;
          }
        });
      }
    }
    return written;
  }

  // Handles copy_, fill_ and zero_, whose new contents do not depend on the old: %1 becomes clone(%2), full(sizes, 0).
  bool write_contents(NodeId n, const Written& written) {
    const std::string& name = old_.target(n).name();
    const bool is_copy = name == "aten::copy_";
    const bool is_fill = name == "aten::fill_.Scalar" || name == "aten::fill_.Tensor" || name == "aten::zero_";
    // A view that visits an element twice has no unique new contents.
    if ((!is_copy && !is_fill) || internal_overlap(view_of(old_, written.after)) != Overlap::kNone) return false;
    if (copies_lazily(n)) return false;
    const auto arguments = old_.arguments(n);
    const Argument source = arguments.size() > 1 ? arguments[1] : Argument::of_int(0);
    const Value& value = old_.value(written.after);
    const auto sizes = old_.sizes(written.after);
    const NodeId before = new_.last();
    ValueId content;
    if (source.kind == ArgumentKind::kValue && old_.value(source.ref.value).kind == ValueKind::kTensor) {
      if (!old_.value(source.ref.value).storage.valid()) return false;
      const Argument blocking = is_copy ? arguments[2] : Argument::of_bool(false);
      ValueId plain = images_.current(source.ref.value);
      // Operators other than views would read the lazy value as if it were the stored one.
      const bool lazy = images_.has_bits(source.ref.value);
      if (lazy) plain = emitter_.call("aten::clone", {Argument::of_value(plain), Argument::of_int(0)});
      const ValueId typed = converted(plain, value.dtype, value.device(), blocking);
      content = emitter_.expand(typed, sizes);
      // A new tensor must have the layout of the one it replaces, unless it is scattered, for later kernels.
      if (images_.replaces(written.after)) {
        const StridedView wanted = view_of(old_, written.after);
        StridedView have = view_of(new_, content);
        have.offset = wanted.offset;
        const bool fresh = (typed != plain || lazy) && content == typed;
        if (!fresh || !same_elements(have, wanted)) {
          const bool keep = same_elements(have, wanted) && is_dense(have);
          content = emitter_.call("aten::clone",
                                  {Argument::of_value(content), keep ? Argument::none() : Argument::of_int(0)});
        }
      }
    } else if (source.kind == ArgumentKind::kConstant || source.kind == ArgumentKind::kNone) {
      return false;
    } else {
      const Argument number = emitter_.mapped(source, [&](ValueId v) { return images_.current(v); });
      content = emitter_.call("aten::full",
                              {new_.int_list(sizes), number, Argument::of_int(static_cast<int64_t>(value.dtype)),
                               Argument::none(), Argument::of_device(value.device()), Argument::none()},
                              {.dtype = value.dtype,
                               .sizes = {sizes.begin(), sizes.end()},
                               .strides = c10::contiguous_strides(sizes),
                               .device = value.device()});
    }
    commit(written, content);
    // Backward nodes link to the last new node, which replaces the write.
    if (new_.last() != before) carried_.node(n, new_.last());
    keep_saved(n, new_.last());
    return true;
  }

  // Calls the functional operator on fake tensors to know its layout; erases the node if it does not match.
  bool write_functionally(NodeId n, const FunctionalForm& form, std::span<const Written> in_any_order) {
    std::vector<Written> written;  // in the order of the functional form
    for (const uint16_t position : form.written) {
      std::copy_if(in_any_order.begin(), in_any_order.end(), std::back_inserter(written),
                   [&](const Written& w) { return w.position == position; });
    }
    const auto arguments = old_.arguments(n);
    std::vector<Argument> taken;
    for (const uint16_t position : form.arguments) {
      taken.push_back(emitter_.mapped(arguments[position], [&](ValueId v) { return images_.current(v); }));
    }
    const NodeId made = emitter_.append(carried_.target(form.target), taken);
    const auto give_up = [&] {
      new_.erase(made);
      return false;
    };
    if (!emitter_.find_results(made)) return give_up();
    const auto results = new_.results(made);
    std::vector<ValueId> contents;
    new_.for_each_value(results.subspan(form.fresh.size()), [&](ValueId v) { contents.push_back(v); });
    if (contents.size() != written.size()) return give_up();
    for (size_t i = 0; i < written.size(); ++i) {
      const StridedView have = view_of(new_, contents[i]);
      const StridedView wanted = view_of(old_, written[i].after);
      const bool same_sizes = std::ranges::equal(have.sizes, wanted.sizes);
      const bool same_layout =
          same_sizes && same_elements({have.sizes, have.strides, 0, 1}, {wanted.sizes, wanted.strides, 0, 1});
      const bool same_dtype = new_.value(contents[i]).dtype == old_.value(written[i].after).dtype;
      const bool same_device = new_.value(contents[i]).device() == old_.value(written[i].after).device();
      if (!same_sizes || !same_device) return give_up();
      if (!same_layout || !same_dtype) {
        // Another layout is harmless only if no sum or random draw depends on the order of elements.
        const OperatorFacts& facts = form.target.facts();
        if (!facts.pointwise || facts.random || !is_layout_independent(old_, n)) return give_up();
      }
    }
    // Results other than written arguments are taken from the functional operator unchanged.
    for (size_t r = 0; r < form.fresh.size(); ++r) {
      const Argument& old = old_.results(n)[form.fresh[r]];
      if (old.kind == ArgumentKind::kValue && results[r].kind == ArgumentKind::kValue) {
        images_.define(old.ref.value, results[r].ref.value);
      } else if (old.kind != ArgumentKind::kNone || results[r].kind != ArgumentKind::kNone) {
        return give_up();
      }
    }
    carried_.node(n, made);
    for (size_t i = 0; i < written.size(); ++i) {
      const Value& value = old_.value(written[i].after);
      commit(written[i], converted(contents[i], value.dtype, value.device(), Argument::of_bool(false)));
    }
    keep_saved(n, made);
    return true;
  }

  // The fallback: runs the original operator on a copy of the storage. Always works, at the cost of the copy.
  void call_functionally(NodeId n, std::span<const Written> written) {
    const auto target = functional_call_of(old_.target(n));
    if (!target) {
      fail(n,
           "writes its arguments and has no functional form; register an operator that returns the written values, "
           "named without the last '_' or with the suffix '_functional'");
    }
    ++result_.functional_calls;
    const std::vector<Argument> arguments = current_arguments(n);
    const NodeId made = emitter_.append(carried_.target(*target), arguments);
    const OperatorFacts& facts = old_.facts(n);
    std::vector<Argument> results;
    for (size_t r = 0; r < old_.results(n).size(); ++r) {
      if (std::ranges::find(facts.aliases, r, &OperatorFacts::Alias::result) != facts.aliases.end()) continue;
      results.push_back(emitter_.mapped(old_.results(n)[r], [&](ValueId v) { return define_like(v, made); }));
    }
    // Each written storage is replaced by one new storage as a whole, so tensors that shared one still do.
    std::vector<std::pair<StorageId, StorageId>> storages;
    std::vector<std::pair<StorageId, ValueId>> wholes;
    size_t next = 0;
    for (const uint16_t position : facts.written) {
      results.push_back(emitter_.mapped(old_.arguments(n)[position], [&](ValueId) {
        const Written& w = written[next++];
        const StorageId storage = old_.value(w.before).storage;
        TensorGeometry geometry = TensorGeometry::of(old_, w.after);
        auto known = std::find_if(storages.begin(), storages.end(), [&](const auto& s) { return s.first == storage; });
        if (known == storages.end()) {
          const int64_t bytes = new_.storage(new_.value(images_.base(storage)).storage).bytes;
          storages.emplace_back(storage, emitter_.add_storage(made, geometry, bytes));
          known = storages.end() - 1;
        }
        const ValueId value = emitter_.new_tensor(made, geometry, known->second);
        wholes.emplace_back(storage, value);
        return value;
      }));
    }
    new_.set_results(made, results);
    carried_.node(n, made);
    for (const auto& [storage, whole] : wholes) images_.replace(storage, whole, view_of(new_, whole).bytes().second);
    keep_saved(n, made);
  }

  // Returns whether computing all results from the old contents equals computing them in place. An operand that
  // overlaps the written tensor would be read after a part of the write. Pointwise on the same geometry is safe.
  bool may_reorder(NodeId n, const FunctionalForm& form, std::span<const Written> written) const {
    if (copies_lazily(n)) return false;
    std::vector<StorageId> storages;
    for (const Written& w : written) {
      const StorageId storage = old_.value(w.before).storage;
      if (std::find(storages.begin(), storages.end(), storage) != storages.end()) return false;
      storages.push_back(storage);
      if (exceeds_storage(w) && !images_.replaces(w.after)) return false;
      if (internal_overlap(view_of(old_, w.after)) != Overlap::kNone) return false;
      if (images_.has_bits(w.after) && !(form.target.facts().pointwise && is_layout_independent(old_, n))) return false;
    }
    if (storages.size() > 1) std::sort(storages.begin(), storages.end());
    bool good = true;
    const auto arguments = old_.arguments(n);
    for (uint16_t i = 0; i < arguments.size(); ++i) {
      if (std::ranges::find(written, i, &Written::position) != written.end()) continue;
      old_.for_each_value(arguments.subspan(i, 1), [&](ValueId v) {
        const Value& value = old_.value(v);
        if (!value.storage.valid() || !std::binary_search(storages.begin(), storages.end(), value.storage)) return;
        const ValueId w = written.front().after;
        good = good && form.target.facts().pointwise && written.size() == 1 && value.dtype == old_.value(w).dtype &&
               images_.has_bits(v) == images_.has_bits(w) && same_geometry(view_of(old_, v), view_of(old_, w));
      });
    }
    return good;
  }

  // Records `content` as the new contents at the place of the write.
  void commit(const Written& written, ValueId content) { result_.scatters += images_.write(written.after, content); }

  // copy_ and in-place forms convert to the dtype and device of the written tensor; functional forms do not.
  ValueId converted(ValueId content, c10::ScalarType dtype, c10::Device device, const Argument& non_blocking) {
    const Value& value = new_.value(content);
    if (value.dtype == dtype && value.device() == device) return content;
    return emitter_.call("aten::_to_copy",
                         {Argument::of_value(content),
                          value.dtype == dtype ? Argument::none() : Argument::of_int(static_cast<int64_t>(dtype)),
                          Argument::none(), value.device() == device ? Argument::none() : Argument::of_device(device),
                          Argument::none(), non_blocking, Argument::none()});
  }

  // Copies a placeholder's image back to it once, at the end of the program: by one copy_ if the placeholder covers
  // everything that was written, otherwise the written bytes as a 1-D tensor.
  void write_back(NodeId placeholder) {
    const NodeId made = carried_.replacement_of(placeholder);
    const Argument& result = old_.results(placeholder).front();
    const ValueId id = result.ref.value;
    const StorageId storage = old_.value(id).storage;
    // Nothing was written, or only the original contents.
    if (!storage.valid() || images_.version(storage) == 0) return;
    const Extent& extent = writes_[storage.index];
    const ValueId target = new_.results(made).front().ref.value;
    if (!extent.only.valid() && images_.bytes(storage) == images_.first_bytes(storage)) {
      // Only tensors without elements were written.
      images_.replace(storage, target);
      return;
    }
    const NodeId model = extent.last.valid() ? extent.last : placeholder;
    emitter_.stand_for(model, carried_.replacement_of(old_.node(model).forward));
    const StridedView view = view_of(old_, id);
    const auto [begin, end] = view.bytes();
    const bool grown = images_.bytes(storage) > images_.first_bytes(storage);
    const bool fits = !grown && internal_overlap(view) == Overlap::kNone &&
                      ((!extent.several && same_geometry(view, view_of(old_, extent.only))) ||
                       (is_dense(view) && begin <= extent.begin && extent.end <= end));
    const TensorGeometry geometry = TensorGeometry::of(new_, target);
    ValueId to = target;
    ValueId from;
    if (fits) {
      from = images_.current(id);
    } else {
      // Copies the written bytes as 1-D tensors, including the unchanged bytes between the views.
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
      if (new_.value(to).dtype != row.dtype) {
        to = emitter_.flat(to, row.dtype, grown ? images_.bytes(storage) : extent.end);
      }
      to = emitter_.as_strided(to, row);
      from = images_.row(storage, row.dtype, first, row.sizes[0]);
    }
    const TensorGeometry to_geometry = TensorGeometry::of(new_, to);
    const NodeId node = emitter_.append(emitter_.target("aten::copy_"),
                                        {Argument::of_value(to), Argument::of_value(from), Argument::of_bool(false)});
    emitter_.add_result(node, to_geometry, new_.value(target).storage);
    // The copy is not in the user's program, so it has no module and no forward node.
    mutable_node(new_, node).region = Graph::kRootRegion;
    mutable_node(new_, node).forward = NodeId();
    images_.replace(storage, target);
  }

  // Handles a resized placeholder storage: resizes a 1-D tensor over the storage; the geometry is the caller's.
  ValueId longer(ValueId placeholder, int64_t before, int64_t bytes) {
    const StorageId storage = new_.value(placeholder).storage;
    TensorGeometry row = TensorGeometry::of(new_, placeholder);
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
    mutable_storage(new_, storage).bytes = std::max(new_.storage(storage).bytes, bytes);
    return emitter_.call("aten::resize_", {Argument::of_value(alias), new_.int_list(row.sizes), Argument::none()}, row,
                         storage);
  }

  // Reads the arguments of all end nodes before creating the first, since reading may emit views.
  void ends() {
    std::vector<std::vector<Argument>> arguments;
    for (const NodeId n : ends_) {
      emitter_.stand_for(n, NodeId());
      arguments.push_back(current_arguments(n));
    }
    for (size_t i = 0; i < ends_.size(); ++i) {
      emitter_.stand_for(ends_[i], NodeId());
      carried_.node(ends_[i], emitter_.append(carried_.target(old_.node(ends_[i]).target), arguments[i]));
    }
  }

  std::vector<Argument> current_arguments(NodeId n) {
    return emitter_.mapped(old_.arguments(n), [&](ValueId v) { return images_.current(v); });
  }

  // Creates a result like the old node's. A view is in the new storage of its image; others get new storages.
  ValueId define_like(ValueId id, NodeId made) {
    const Value& value = old_.value(id);
    TensorMeta spec = old_.meta(id);
    if (value.storage.valid()) {
      spec.storage = images_.storage_of(id);
      if (!spec.storage.valid()) spec.storage = carried_.storage(value.storage, made);
    }
    const ValueId copy = new_.new_value(made, value.kind, spec);
    images_.define(id, copy);
    return copy;
  }

  void keep_saved(NodeId n, NodeId made) {
    carried_.saved(n, made, [&](ValueId v) {
      const ValueId latest = images_.latest(v);
      return latest.valid() ? latest : images_.current(v);
    });
  }

  // Recreates saved internal values where necessary, before the node that saves them is created.
  void prepare_saved(NodeId n) {
    for (const SavedTensor& saved : old_.saved(n)) {
      if (saved.role == SavedRole::kInternal) images_.current(saved.value);
    }
  }

  [[noreturn]] void fail(NodeId n, const std::string& what) const {
    throw UnsupportedError(what + ": " + to_text(old_, n), n);
  }

  // The bytes written in each storage.
  struct Extent {
    int64_t begin = 0;
    int64_t end = 0;
    ValueId only;  // the geometry written, if there was only one
    bool several = false;
    NodeId last;
  };

  const Graph& old_;
  Graph new_;
  NodeEmitter emitter_;
  StorageImages images_;
  GraphRebuild carried_;
  std::vector<Extent> writes_;
  std::vector<NodeId> placeholders_;
  std::vector<NodeId> ends_;
  FunctionalizeResult result_;
};

// Describes mutations and aliases of a graph without mutation.
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
  std::ranges::sort(result.mutated, {}, &FunctionalizeResult::Mutated::placeholder);
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
  // The epilogue from its end: views, and copies to placeholders from other storages.
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
      // At most one copy per storage, and not from a storage that the epilogue writes.
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
