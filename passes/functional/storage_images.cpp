#include "passes/functional/storage_images.h"

#include <c10/util/strides.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/functional.h"

namespace shadowgraph {

IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph) {
  IdMap<ValueId, uint8_t> bits;
  for (const NodeId n : graph.nodes()) {
    const OperatorFacts& facts = graph.facts(n);
    if (facts.aliases.empty()) continue;
    const auto arguments = graph.arguments(n);
    const auto results = graph.results(n);
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.result >= results.size() || alias.argument >= arguments.size()) continue;
      if (arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      const ValueId source = arguments[alias.argument].ref.value;
      // set_ keeps those of its self.
      const ValueId bits_of = facts.takes_storage ? arguments[0].ref.value : source;
      uint8_t toggled = facts.negates ? kNegativeBit : 0;
      if (facts.conjugates && c10::isComplexType(graph.value(source).dtype)) toggled |= kConjugateBit;
      graph.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        // An operator that may copy has copied here, and a copy holds the values themselves.
        if (graph.value(v).storage != graph.value(source).storage) return;
        // Two conjugations cancel, so the bits are toggled and not set.
        if (const uint8_t now = std::as_const(bits)[bits_of] ^ toggled; now != 0) bits[v] = now;
      });
    }
  }
  return bits;
}

namespace {

bool is_one(const Argument& argument) {
  if (argument.kind == ArgumentKind::kInt) return argument.i == 1;
  return argument.kind == ArgumentKind::kFloat && argument.d == 1.0;
}

}  // namespace

bool is_layout_independent(const Graph& graph, NodeId node) {
  bool complex = false;
  bool floating = false;
  bool narrow = false;
  const auto see = [&](ValueId v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kTensor) return;
    complex = complex || c10::isComplexType(value.dtype);
    floating = floating || complex || c10::isFloatingType(value.dtype);
    narrow = narrow || c10::isReducedFloatingType(value.dtype);
  };
  graph.for_each_input(node, see);
  graph.for_each_output(node, see);
  // Integers and booleans are never rounded.
  if (!floating) return true;
  const Signature& signature = graph.target(node).signature();
  if (namespace_of(signature.name) != "aten") return false;
  if (signature.overload.find("mode") != std::string::npos) return false;  // div's
  const auto arguments = graph.arguments(node);
  for (size_t i = 0; i < arguments.size() && i < signature.arguments.size(); ++i) {
    if (narrow && signature.arguments[i].name == "alpha" && !is_one(arguments[i])) return false;
  }
  switch (operator_row(without_underscore(signature.name)).layout_free) {
    case LayoutFree::kIntegers:
      return false;
    case LayoutFree::kWide:
      return !complex && !narrow;
    case LayoutFree::kReal:
      return !complex;
    case LayoutFree::kComplex:
      return true;
  }
  return false;
}

namespace {

bool same_numbers(std::span<const int64_t> a, std::span<const int64_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// Says whether a view's arguments speak of the storage rather than of the source. Such a view can be taken from the
// image in one step.
bool is_absolute(const Target& target) {
  const OperatorFacts& facts = target.facts();
  return target.name() == "aten::as_strided" || target.name() == "aten::as_strided_" || target.name() == "sg::alias" ||
         facts.takes_storage || facts.resizes;
}

// These have a scatter of their own, which says what the program said.
bool is_scatterable(const std::string& name) {
  return name == "aten::slice.Tensor" || name == "aten::select.int" || name == "aten::diagonal";
}

}  // namespace

StorageImages::StorageImages(const Graph& read, Graph& made, NodeEmitter& emitter)
    : read_(read), made_(made), emitter_(emitter), aliases_(AliasAnalysis::of(read)), bits_(lazy_bits_of(read)) {
  images_.resize(read.storage_count());
  find_resized();
}

// What is known of the whole program beforehand: which storages are resized, what in-place operators gave back.
// Resized storages have no length until the last resize, so this must be known before the first node is made. Values
// that an in-place operator gave back are the same tensor under another name (origins_).
void StorageImages::find_resized() {
  for (const NodeId n : read_.nodes()) {
    const OperatorFacts& facts = read_.facts(n);
    const auto arguments = read_.arguments(n);
    const auto results = read_.results(n);
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.result >= results.size() || alias.argument >= arguments.size()) continue;
      if (arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      const ValueId source = arguments[alias.argument].ref.value;
      read_.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        if (read_.value(v).storage != read_.value(source).storage) return;
        const bool same_bits = std::as_const(bits_)[v] == std::as_const(bits_)[source];
        if (!facts.written.empty() && same_bits && read_.value(v).dtype == read_.value(source).dtype &&
            same_geometry(view_of(read_, v), view_of(read_, source))) {
          const ValueId origin = std::as_const(origins_)[source];
          origins_[v] = origin.valid() ? origin : source;
        }
        // resize_, or an `out=` that did not fit.
        if (!facts.written.empty() && read_.value(v).storage.valid() && !is_absolute(read_.target(n)) &&
            !same_numbers(read_.sizes(v), read_.sizes(source)) && facts.is_out_variant) {
          images_[read_.value(v).storage.index].resized = true;
        }
      });
    }
    if (facts.resizes) {
      read_.for_each_output(n, [&](ValueId v) {
        if (read_.value(v).storage.valid()) images_[read_.value(v).storage.index].resized = true;
      });
    }
  }
}

// The first value in a storage becomes its image; later ones are views of it at the current version.
void StorageImages::define(ValueId id, ValueId made) {
  const Value& value = read_.value(id);
  if (!value.storage.valid()) {
    now_[id] = {made, 0};
    return;
  }
  Image& image = images_[value.storage.index];
  if (!image.base.valid()) {
    image.base = made;
    const int64_t reached = view_of(read_, id).bytes().second;
    image.bytes = image.resized ? reached : std::max(reached, read_.storage(value.storage).bytes);
    image.first_bytes = image.bytes;
  }
  now_[id] = {made, image.version};
}

StorageId StorageImages::storage_of(ValueId id) const {
  const StorageId storage = read_.value(id).storage;
  return storage.valid() && has_image(storage) ? made_.value(base(storage)).storage : StorageId();
}

// The image itself need not be taken from itself.
bool StorageImages::is_base(ValueId id, const Image& image) const {
  const Value& a = read_.value(id);
  const Value& b = made_.value(image.base);
  return a.dtype == b.dtype && a.offset == b.offset && std::as_const(bits_)[id] == 0 &&
         same_numbers(read_.sizes(id), made_.sizes(image.base)) &&
         same_numbers(read_.strides(id), made_.strides(image.base));
}

ValueId StorageImages::latest(ValueId id) const {
  const StorageId storage = read_.value(id).storage;
  if (storage.valid() && has_image(storage) && is_base(id, images_[storage.index])) return base(storage);
  return now_[id].value;
}

// Finds the view that made `id`, if it can be made again from its source alone.
StorageImages::Step StorageImages::step_to(ValueId id) {
  const NodeId producer = read_.value(id).producer;
  const OperatorFacts& facts = read_.facts(producer);
  const auto arguments = read_.arguments(producer);
  const auto results = read_.results(producer);
  if (facts.aliases.empty() || facts.collective || results.size() != 1 || results[0].kind != ArgumentKind::kValue)
    return {};
  const OperatorFacts::Alias& alias = facts.aliases.front();
  if (alias.argument >= arguments.size() || arguments[alias.argument].kind != ArgumentKind::kValue) return {};
  const ValueId source = arguments[alias.argument].ref.value;
  if (read_.value(source).storage != read_.value(id).storage) return {};
  // An in-place result is its operand under another name.
  if (const ValueId origin = std::as_const(origins_)[id]; origin.valid()) return {origin, true};
  if (is_absolute(read_.target(producer))) return {};
  if (!facts.written.empty()) {
    const FunctionalForm* form = functional_form(read_.target(producer));
    if (form == nullptr || !form->target.facts().is_view) return {};
  }
  // Other tensors among the arguments would have to be read again, too.
  uint32_t tensors = 0;
  read_.for_each_input(producer, [&](ValueId) { ++tensors; });
  return tensors == 1 ? Step{source, false} : Step{};
}

// Makes the view of `id` again, of what its source is now: the program's own view, so that the graph reads like it.
ValueId StorageImages::take(ValueId id, const Step& step) {
  const ValueId source = now_[step.source].value;
  if (step.same) return source;
  const NodeId producer = read_.value(id).producer;
  const FunctionalForm* form = functional_form(read_.target(producer));
  const Target& target = form != nullptr ? form->target : read_.target(producer);
  std::vector<Argument> arguments;
  for (const Argument& argument : read_.arguments(producer)) {
    if (argument.kind == ArgumentKind::kValue) {
      arguments.push_back(Argument::of_value(source));
    } else {
      arguments.push_back(emitter_.copied(argument));
    }
  }
  ++views_;
  const NodeId node = emitter_.append(made_.intern_target(target), arguments);
  return emitter_.add_result(node, TensorGeometry::of(read_, id), made_.value(source).storage,
                             read_.value(id).requires_grad);
}

// Returns the image as a tensor of `dtype` from which views of the first `bytes` can be taken. A storage that is
// resized has no known length: it has what was seen of it, and what is looked at now.
ValueId StorageImages::base_as(StorageId storage, c10::ScalarType dtype, int64_t bytes) {
  Image& image = images_[storage.index];
  if (made_.value(image.base).dtype == dtype) return image.base;
  image.bytes = std::max(image.bytes, bytes);
  // A conversion is kept until the image changes, since programs read several views in a row.
  if (image.converted.valid() && image.converted_version == image.version && image.converted_bytes >= bytes &&
      made_.value(image.converted).dtype == dtype) {
    return image.converted;
  }
  image.converted = emitter_.flat(image.base, dtype, image.bytes);
  image.converted_version = image.version;
  image.converted_bytes = image.bytes;
  return image.converted;
}

ValueId StorageImages::row(StorageId storage, c10::ScalarType dtype, int64_t first, int64_t count) {
  const ValueId base = base_as(storage, dtype, (first + count) * static_cast<int64_t>(c10::elementSize(dtype)));
  TensorGeometry row;
  row.dtype = dtype;
  row.device = made_.value(base).device();
  row.sizes = {count};
  row.strides = {1};
  row.offset = first;
  return emitter_.as_strided(base, row);
}

// Takes any view at one step by strides. Lazy bits are no part of the geometry and come on top.
ValueId StorageImages::from_base(ValueId id) {
  const Value& value = read_.value(id);
  ++views_;
  ValueId result = emitter_.as_strided(base_as(value.storage, value.dtype, view_of(read_, id).bytes().second),
                                       TensorGeometry::of(read_, id));
  const uint8_t bits = std::as_const(bits_)[id];
  const StorageId storage = made_.value(result).storage;
  if (bits & kConjugateBit) {
    result = emitter_.call(emitter_.target("aten::_conj"), {Argument::of_value(result)}, TensorGeometry::of(read_, id),
                           storage);
  }
  if (bits & kNegativeBit) {
    result = emitter_.call(emitter_.target("aten::_neg_view"), {Argument::of_value(result)},
                           TensorGeometry::of(read_, id), storage);
  }
  return result;
}

// A tensor without elements may lie on a storage that no node made (set_()). All there is to know is its geometry.
ValueId StorageImages::base_of_nothing(ValueId id) {
  const Value& value = read_.value(id);
  if (read_.numel(id) != 0) {
    throw UnsupportedError("reads a storage that no node of the graph made: " + to_text(read_, value.producer) +
                               "; give its contents by an operator or as an input of the program",
                           value.producer);
  }
  TensorGeometry geometry = TensorGeometry::of(read_, id);
  const NodeId node = emitter_.append(emitter_.target("aten::empty_strided"),
                                      {made_.int_list(read_.sizes(id)), made_.int_list(read_.strides(id)),
                                       Argument::of_int(static_cast<int64_t>(value.dtype)), Argument::none(),
                                       Argument::of_device(value.device()), Argument::none()});
  geometry.offset = 0;
  const ValueId made = emitter_.add_result(node, geometry, emitter_.add_storage(node, geometry));
  define(id, made);
  return made;
}

// Returns the value as it is to be read now. Nothing is made if its storage was not written since.
ValueId StorageImages::current(ValueId id) {
  const Now now = std::as_const(now_)[id];
  const StorageId storage = read_.value(id).storage;
  if (!storage.valid()) {
    if (!now.value.valid()) {
      throw UnsupportedError("uses a value that nothing made: " + to_text(read_, read_.value(id).producer),
                             read_.value(id).producer);
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

  // Goes back through the views to one that is current or is the image itself, then forth again. Beyond kMostViews one
  // view by strides is cheaper than the chain.
  c10::SmallVector<std::pair<ValueId, Step>, kMostViews> path;
  ValueId at = id;
  while (!is_current(at)) {
    if (is_base(at, image)) {
      now_[at] = {image.base, image.version};
      break;
    }
    const Step step = step_to(at);
    if (path.size() == kMostViews && step.source.valid()) {
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

// The version says that everything taken before is stale.
void StorageImages::replace(StorageId storage, ValueId whole) {
  Image& image = images_[storage.index];
  image.base = whole;
  ++image.version;
}

// A view that covers all that anybody looks at may become the image as it is.
bool StorageImages::covers(ValueId id) const {
  const StorageId storage = read_.value(id).storage;
  const StridedView view = view_of(read_, id);
  const auto [begin, end] = view.bytes();
  const auto [first, last] = aliases_.bytes_used(storage);
  return begin <= first && last <= end && is_dense(view);
}

void StorageImages::replace_grown(StorageId storage, ValueId whole, int64_t bytes) {
  replace(storage, whole);
  Image& image = images_[storage.index];
  image.bytes = std::max(image.bytes, bytes);
}

// Says whether the storage may hold no whole number of elements of this size. For one that is resized only the last
// length is known.
bool StorageImages::ends_within(StorageId storage, int64_t item) const {
  const Image& image = images_[storage.index];
  const Value& base = made_.value(image.base);
  if (image.resized && item > static_cast<int64_t>(c10::elementSize(base.dtype))) return true;
  return made_.storage(base.storage).bytes % item != 0;
}

// Writes x[1:3] = content as slice_scatter(x, content, 0, 1, 3), where x is all of its storage. Such a graph reads like
// the program, and reinplace finds the slice again.
std::optional<ValueId> StorageImages::scatter_by_view(ValueId view, ValueId content) {
  if (const ValueId origin = std::as_const(origins_)[view]; origin.valid()) view = origin;
  const NodeId producer = read_.value(view).producer;
  const std::string& name = read_.target(producer).name();
  if (!is_scatterable(name) || std::as_const(bits_)[view] != 0) return std::nullopt;
  const Step step = step_to(view);
  if (!step.source.valid() || !covers(step.source) || std::as_const(bits_)[step.source] != 0) return std::nullopt;
  if (ends_within(read_.value(view).storage, TensorGeometry::of(read_, view).itemsize())) return std::nullopt;
  const ValueId whole = current(step.source);
  std::vector<Argument> arguments;
  for (const Argument& argument : read_.arguments(producer)) {
    if (argument.kind != ArgumentKind::kValue) {
      arguments.push_back(emitter_.copied(argument));
      continue;
    }
    if (argument.ref.value != step.source) return std::nullopt;
    arguments.push_back(Argument::of_value(whole));
    arguments.push_back(Argument::of_value(content));
  }
  const char* scatter = name == "aten::slice.Tensor" ? "aten::slice_scatter"
                        : name == "aten::select.int" ? "aten::select_scatter"
                                                     : "aten::diagonal_scatter";
  const NodeId node = emitter_.append(emitter_.target(scatter), arguments);
  const TensorGeometry geometry = TensorGeometry::of(made_, whole);
  const StorageId storage = emitter_.add_storage(node, geometry, made_.storage(made_.value(whole).storage).bytes);
  return emitter_.add_result(node, geometry, storage);
}

// Returns `content` laid out like `view`, if a clone can do that; clones are contiguous here.
ValueId StorageImages::clone_with_strides_of(ValueId view, ValueId content) {
  const auto sizes = read_.sizes(view);
  const auto strides = read_.strides(view);
  const auto contiguous = c10::contiguous_strides(sizes);
  const StridedView wanted{sizes, strides, 0, 1};
  if (!same_elements(wanted, {sizes, {contiguous.data(), contiguous.size()}, 0, 1})) return {};
  return emitter_.call(emitter_.target("aten::clone"), {Argument::of_value(content), Argument::of_int(0)});
}

// Gives a tensor, and where it is to go, one dimension more, which runs over the bytes of an element. A storage with an
// odd number of bytes can then be scattered into.
ValueId StorageImages::in_bytes(ValueId content, TensorGeometry& target) {
  const int64_t item = target.itemsize();
  content = emitter_.call(emitter_.target("aten::clone"), {Argument::of_value(content), Argument::of_int(0)});
  const StorageId storage = made_.value(content).storage;
  TensorGeometry bytes = TensorGeometry::of(made_, content);
  bytes.sizes.push_back(1);
  bytes.strides.push_back(1);
  content = emitter_.call(emitter_.target("aten::unsqueeze"),
                          {Argument::of_value(content), Argument::of_int(static_cast<int64_t>(target.sizes.size()))},
                          bytes, storage);
  bytes.dtype = at::kByte;
  bytes.sizes.back() = item;
  for (int64_t& stride : bytes.strides) stride *= item;
  bytes.strides.back() = 1;
  content =
      emitter_.call(emitter_.target("aten::view.dtype"),
                    {Argument::of_value(content), Argument::of_int(static_cast<int64_t>(at::kByte))}, bytes, storage);
  target.dtype = at::kByte;
  for (int64_t& stride : target.strides) stride *= item;
  target.offset *= item;
  target.sizes.push_back(item);
  target.strides.push_back(1);
  return content;
}

bool StorageImages::write(ValueId view, ValueId content) {
  const Value& value = read_.value(view);
  const StorageId storage = value.storage;
  if (read_.numel(view) == 0) return false;
  // What is stored is what the lazy bits hide: the conjugate of the conjugate.
  if (std::as_const(bits_)[view] & kConjugateBit) {
    content = emitter_.call(emitter_.target("aten::conj_physical"), {Argument::of_value(content)});
  }
  if (std::as_const(bits_)[view] & kNegativeBit) {
    content = emitter_.call(emitter_.target("aten::neg"), {Argument::of_value(content)});
  }
  if (replaces(view)) {
    const auto laid_out_alike = [&](ValueId v) { return same_elements(view_of(made_, v), view_of(read_, view)); };
    if (!laid_out_alike(content)) {
      if (const ValueId clone = clone_with_strides_of(view, content); clone.valid()) content = clone;
    }
    if (laid_out_alike(content)) {
      replace(storage, content);
      // No longer what lies behind all that is ever looked at.
      images_[storage.index].bytes = view_of(read_, view).bytes().second;
      return false;
    }
  }
  if (const auto scattered = scatter_by_view(view, content)) {
    replace(storage, *scattered);
    return true;
  }
  const int64_t end = view_of(read_, view).bytes().second;
  // Scatters copy the storage as elements of its dtype: one that holds no whole number of them is written in smaller
  // pieces.
  TensorGeometry target = TensorGeometry::of(read_, view);
  if (ends_within(storage, target.itemsize())) content = in_bytes(content, target);
  ValueId base = base_as(storage, target.dtype, end);
  // Scattering into a tensor that visits bytes twice is not defined.
  if (internal_overlap(view_of(made_, base)) != Overlap::kNone) {
    base = emitter_.flat(base, target.dtype, std::max(end, images_[storage.index].bytes));
  }
  const NodeId node = emitter_.append(
      emitter_.target("aten::as_strided_scatter"),
      {Argument::of_value(base), Argument::of_value(content),
       made_.int_list({target.sizes.data(), target.sizes.size()}),
       made_.int_list({target.strides.data(), target.strides.size()}), Argument::of_int(target.offset)});
  const TensorGeometry result = TensorGeometry::of(made_, base);
  const StorageId made_storage = emitter_.add_storage(node, result, made_.storage(made_.value(base).storage).bytes);
  replace(storage, emitter_.add_result(node, result, made_storage));
  return true;
}

}  // namespace shadowgraph
