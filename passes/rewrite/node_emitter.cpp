#include "passes/rewrite/node_emitter.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "core/calls/calls_on_fakes.h"
#include "core/fake/simulated_devices.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"

namespace shadowgraph {
namespace {

bool is_given(StorageKind kind) {
  return kind == StorageKind::kParameter || kind == StorageKind::kBuffer || kind == StorageKind::kInput ||
         kind == StorageKind::kConstant;
}

TensorMeta meta_of(const TensorGeometry& geometry, StorageId storage, bool requires_grad = false) {
  return {.dtype = geometry.dtype,
          .sizes = geometry.sizes,
          .strides = geometry.strides,
          .storage = storage,
          .offset = geometry.offset,
          .device = geometry.device,
          .requires_grad = requires_grad};
}

}  // namespace

GraphRebuild::GraphRebuild(const Graph& read, Graph& made)
    : old_(read), new_(made), targets_(read.target_count()), entered_(read.region_count()) {
  made.metadata = read.metadata;
  // Phases, constants and regions keep their ids, so nodes can be copied without lookups.
  for (uint32_t i = 0; i < read.phase_count(); ++i) made.intern_phase(read.phase_name(PhaseId(i)));
  for (uint32_t i = 0; i < read.constant_count(); ++i) made.share_constant(read, ConstantId(i));
  for (uint32_t i = 1; i < read.region_count(); ++i) {
    Region region = read.region(RegionId(i));
    if (region.name.valid()) region.name = made.intern(read.text(region.name));
    if (region.class_name.valid()) region.class_name = made.intern(read.text(region.class_name));
    if (region.target.valid()) region.target = target(region.target);
    // The region's argument values do not exist yet; see enter_region.
    region.arguments = {};
    made.add_region(region);
  }
}

TargetId GraphRebuild::target(TargetId id) {
  TargetId& made = targets_[id.index];
  if (!made.valid()) made = new_.intern_target(old_.target(id));
  return made;
}

void GraphRebuild::node(NodeId read, NodeId made) {
  nodes_[read] = made;
  old_.for_each_note(read, [&](std::string_view key, std::string_view value) { new_.set_note(made, key, value); });
}

// A saved tensor may now be another argument of the call, or none. It is looked up among arguments and results, and
// otherwise recorded as internal, so that its bytes still count as saved.
void GraphRebuild::saved(NodeId read, NodeId made, const ValueOf& value_of) {
  if (old_.saved(read).empty()) return;
  std::vector<SavedTensor> kept;
  for (const SavedTensor& saved : old_.saved(read)) {
    SavedTensor copy;
    copy.value = value_of(saved.value);
    if (!copy.value.valid()) continue;
    uint16_t position = 0;
    const StorageId storage = new_.value(copy.value).storage;
    // A rebuilt call may have a view of the saved tensor, so compare storages.
    const auto take_if_same = [&](ValueId v) {
      const bool same = v == copy.value || (storage.valid() && new_.value(v).storage == storage);
      if (same && copy.role == SavedRole::kInternal) copy = {copy.value, saved.role, position};
    };
    if (saved.role == SavedRole::kArgument) {
      for (const Argument& argument : new_.arguments(made)) {
        new_.for_each_value({&argument, 1}, take_if_same);
        ++position;
      }
    } else if (saved.role == SavedRole::kResult) {
      new_.for_each_output(made, [&](ValueId v) {
        take_if_same(v);
        ++position;
      });
    }
    kept.push_back(copy);
  }
  new_.set_saved(made, kept);
}

StorageId GraphRebuild::storage(StorageId read, NodeId born) {
  Storage storage = old_.storage(read);
  storage.born = born;
  // freed_after is set at the end, when all uses are known.
  storage.freed_after = NodeId();
  return first_[read] = new_.add_storage(storage);
}

void GraphRebuild::enter_region(RegionId id, const ValueOf& latest) {
  // Parents first, as far as they are new.
  for (; id.valid() && !entered_[id.index]; id = old_.region(id).parent) {
    entered_[id.index] = true;
    const auto arguments = old_.region_arguments(id);
    if (arguments.empty()) continue;
    const std::function<Argument(const Argument&)> copied = [&](const Argument& a) {
      if (a.kind != ArgumentKind::kValue) return copied_argument(new_, old_, a, copied);
      const ValueId value = latest(a.ref.value);
      return value.valid() ? Argument::of_value(value) : Argument::none();
    };
    std::vector<Argument> made;
    for (const Argument& argument : arguments) made.push_back(copied(argument));
    new_.set_region_arguments(id, made);
  }
}

// `final` returns the storage with an old storage's final contents, which an in-place chain changes.
void GraphRebuild::lifetimes(const std::function<StorageId(StorageId)>& final) {
  // New storages are freed after their last use, the others where the old graph freed them. Node ids are in order.
  std::vector<NodeId> free_point = last_uses(new_);
  std::vector<bool> never(free_point.size());
  for (uint32_t i = 0; i < old_.storage_count(); ++i) {
    const Storage& old = old_.storage(StorageId(i));
    const StorageId first = std::as_const(first_)[StorageId(i)];
    const StorageId last = final(StorageId(i));
    if (first.valid() && is_given(old.kind) && (first != last || !old.freed_after.valid())) never[first.index] = true;
    if (!last.valid()) continue;
    if (last != first && !is_given(old.kind) && !is_given(new_.storage(last).kind)) {
      new_.set_storage_kind(last, old.kind);
    }
    if (!old.freed_after.valid()) {
      if (last == first || !is_given(old.kind)) never[last.index] = true;
      continue;
    }
    const NodeId at = std::as_const(behind_)[old.freed_after];
    NodeId& freed_at = free_point[last.index];
    if (!freed_at.valid() || (at.valid() && freed_at < at)) freed_at = at;
  }
  for (uint32_t i = 0; i < free_point.size(); ++i) {
    if (never[i] || (free_point[i].valid() && is_end(new_.node(free_point[i]).target))) free_point[i] = NodeId();
  }
  set_free_points(new_, free_point);
}

void GraphRebuild::finish(const ValueOf& latest, const std::function<StorageId(StorageId)>& final) {
  for (Guard guard : old_.guards) {
    guard.value = latest(guard.value);
    if (guard.value.valid()) new_.guards.push_back(std::move(guard));
  }
  lifetimes(final);
}

namespace {

template <class T>
void put(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
void put_all(std::string& key, std::span<const T> values) {
  // Prefix the length: two consecutive lists must not read as two others.
  put(key, values.size());
  key.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Everything about the arguments that a shape rule may depend on.
void put_arguments(std::string& key, const Graph& graph, std::span<const Argument> arguments) {
  put(key, arguments.size());
  for (const Argument& a : arguments) {
    put(key, a.kind);
    switch (a.kind) {
      case ArgumentKind::kValue: {
        const Value& v = graph.value(a.ref.value);
        put(key, v.kind);
        put(key, v.dtype);
        put(key, v.device_type);
        put(key, v.device_index);
        put(key, v.offset);
        // Operators such as resize_ and set_ depend on the size of the storage.
        if (v.storage.valid()) put(key, graph.storage(v.storage).bytes);
        put_all(key, graph.sizes(a.ref.value));
        put_all(key, graph.strides(a.ref.value));
        break;
      }
      case ArgumentKind::kIntList:
        put_all(key, graph.ints(a));
        break;
      case ArgumentKind::kComplex:
        put_all(key, graph.complex_parts(a));
        break;
      case ArgumentKind::kList:
        put_arguments(key, graph, graph.list(a));
        break;
      default:
        put(key, a.device_type);
        put(key, a.device_index);
        put(key, a.i);
    }
  }
}

}  // namespace

TargetId NodeEmitter::target(const std::string& name) {
  TargetId& id = targets_[name];
  if (!id.valid()) id = new_.intern_operator(name);
  return id;
}

// Arguments refer to pools of their graph, so they are recreated in the new one. Constants have the same ids in both.
Argument NodeEmitter::copied(const Argument& argument) {
  if (argument.kind == ArgumentKind::kList) return mapped(argument, [](ValueId) { return ValueId(); });
  return copied_argument(new_, old_, argument, [](const Argument& element) { return element; });
}

NodeId NodeEmitter::append(TargetId target, std::span<const Argument> arguments) {
  const NodeId id = new_.append(target, arguments);
  Node& node = mutable_node(new_, id);
  const Node& model = old_.node(model_);
  node.region = model.region;
  node.phase = model.phase;
  node.flags = model.flags;
  node.forward = forward_;
  if (model.source.valid()) node.source = new_.intern(old_.text(model.source));
  return id;
}

StorageId NodeEmitter::add_storage(NodeId born, const TensorGeometry& geometry, int64_t bytes) {
  const int64_t extent = extent_of(geometry.sizes, geometry.strides).value_or(0);
  const int64_t reached = extent == 0 ? 0 : (extent + geometry.offset) * geometry.itemsize();
  // The verifier rejects a storage shorter than the extent of its values.
  return new_.add_storage({.bytes = std::max(bytes, reached),
                           .device_type = geometry.device.type(),
                           .device_index = geometry.device.index(),
                           .born = born});
}

ValueId NodeEmitter::new_tensor(NodeId node, const TensorGeometry& geometry, StorageId storage) {
  return new_.new_tensor(node, meta_of(geometry, storage));
}

ValueId NodeEmitter::add_result(NodeId node, const TensorGeometry& geometry, StorageId storage, bool requires_grad) {
  return new_.add_tensor_result(node, meta_of(geometry, storage, requires_grad));
}

ValueId NodeEmitter::call(const std::string& name, std::initializer_list<Argument> arguments,
                          const TensorGeometry& geometry, StorageId storage) {
  const NodeId node = append(target(name), arguments);
  return add_result(node, geometry, storage.valid() ? storage : add_storage(node, geometry));
}

// Runs the call on fake tensors with the operands' geometry and records the geometry of its results.
NodeEmitter::Results NodeEmitter::run_on_fakes(NodeId node) {
  if (!mode_) mode_ = std::make_unique<FakeTensorMode>(with_all_devices());
  // Graphs record calls below autograd; above it the call might be decomposed.
  const BelowAutograd below;
  // A deque, since tensor_of returns references, which must stay valid as fakes are added.
  std::deque<at::Tensor> fakes;
  torch::jit::Stack stack;
  calls_.push_arguments(
      node,
      [&](ValueId v) -> const at::Tensor& {
        fakes.push_back(fake_of(new_, v));
        return fakes.back();
      },
      stack);
  calls_.call(node, stack);
  Results results;
  const auto describe = [](const at::Tensor& tensor) {
    return Found{{.dtype = tensor.scalar_type(),
                  .sizes = {tensor.sizes().begin(), tensor.sizes().end()},
                  .strides = {tensor.strides().begin(), tensor.strides().end()},
                  .offset = tensor.storage_offset(),
                  .device = tensor.device()},
                 static_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes())};
  };
  for (const c10::IValue& value : stack) {
    auto& found = results.found.emplace_back();
    results.is_list.push_back(value.isTensorList());
    if (value.isTensor()) {
      if (value.toTensor().defined()) found.push_back(describe(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(describe(tensor));
    } else {
      throw Error("a result that is not a tensor");
    }
  }
  return results;
}

bool NodeEmitter::find_results(NodeId node) {
  std::string key;
  put(key, new_.node(node).target);
  put_arguments(key, new_, new_.arguments(node));
  // Failures are cached as well, since repeated layers would fail each time.
  const auto [entry, added] = known_.try_emplace(std::move(key));
  if (added) {
    try {
      entry->second = run_on_fakes(node);
    } catch (const std::exception&) {
      // Not callable: the operator or its rule is missing, or it rejects these operands. The caller has a fallback.
      entry->second = std::nullopt;
    }
  }
  if (!entry->second) return false;
  const Results& known = *entry->second;
  std::vector<Argument> results;
  for (size_t r = 0; r < known.found.size(); ++r) {
    std::vector<Argument> elements;
    for (const Found& found : known.found[r]) {
      const StorageId storage = add_storage(node, found.geometry, found.bytes);
      elements.push_back(Argument::of_value(new_tensor(node, found.geometry, storage)));
    }
    if (known.is_list[r]) {
      results.push_back(new_.make_list(elements));
    } else {
      results.push_back(elements.empty() ? Argument::none() : elements.front());
    }
  }
  new_.set_results(node, results);
  return true;
}

ValueId NodeEmitter::call(const std::string& name, std::initializer_list<Argument> arguments) {
  const NodeId node = append(target(name), arguments);
  if (!find_results(node)) throw Error("cannot determine the result shape of a call of " + name);
  return new_.results(node).front().ref.value;
}

// A view by geometry only, if no chain of named views leads to it.
ValueId NodeEmitter::as_strided(ValueId source, const TensorGeometry& geometry) {
  return call("aten::as_strided",
              {Argument::of_value(source), new_.int_list(geometry.sizes), new_.int_list(geometry.strides),
               Argument::of_int(geometry.offset)},
              geometry, new_.value(source).storage);
}

// Returns the storage as a 1-D tensor of a dtype, to write parts of it whatever views the program had.
ValueId NodeEmitter::flat(ValueId source, c10::ScalarType dtype, int64_t bytes) {
  const StorageId storage = new_.value(source).storage;
  TensorGeometry row{.dtype = new_.value(source).dtype, .strides = {1}, .device = new_.value(source).device()};
  const auto wanted = static_cast<int64_t>(c10::elementSize(dtype));
  // Element sizes are powers of two, so the larger is a multiple of the smaller.
  const int64_t unit = std::max(wanted, row.itemsize());
  row.sizes = {bytes / unit * (unit / row.itemsize())};
  const auto sizes = new_.sizes(source);
  const bool is_row =
      sizes.size() == 1 && sizes[0] == row.sizes[0] && new_.strides(source)[0] == 1 && new_.value(source).offset == 0;
  ValueId result = is_row ? source : as_strided(source, row);
  // The tensor has whole elements of both dtypes, as a view of another dtype requires.
  if (row.dtype == dtype) return result;
  row.sizes = {bytes / unit * (unit / wanted)};
  row.dtype = dtype;
  return call("aten::view.dtype", {Argument::of_value(result), Argument::of_int(static_cast<int64_t>(dtype))}, row,
              storage);
}

ValueId NodeEmitter::expand(ValueId source, std::span<const int64_t> sizes) {
  TensorGeometry geometry = TensorGeometry::of(new_, source);
  if (std::ranges::equal(sizes, geometry.sizes)) return source;
  const size_t added = sizes.size() - geometry.sizes.size();
  c10::SmallVector<int64_t, 6> strides(sizes.size(), 0);
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.sizes[i] == sizes[added + i]) strides[added + i] = geometry.strides[i];
  }
  // As ATen's inferExpandGeometry: a new dimension of size 1 continues the one after it, unless the source has none.
  for (size_t i = geometry.sizes.empty() ? 0 : added; i-- > 0;) {
    if (sizes[i] == 1) strides[i] = sizes[i + 1] * strides[i + 1];
  }
  geometry.sizes.assign(sizes.begin(), sizes.end());
  geometry.strides = strides;
  return call("aten::expand", {Argument::of_value(source), new_.int_list(sizes), Argument::of_bool(false)}, geometry,
              new_.value(source).storage);
}

}  // namespace shadowgraph
