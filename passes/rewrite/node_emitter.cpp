// Appends calls to a new graph and finds what they return.
//
// Known geometry is written down directly, which costs nothing. Otherwise the operator runs once on fake tensors. The
// answer is kept under a key of target, operand geometry and arguments, so that a model with n equal layers asks once.
#include "passes/rewrite/node_emitter.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <deque>

#include "core/calls/fake_values.h"
#include "core/fake/any_machine.h"
#include "ir/edit/copied_argument.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"

namespace shadowgraph {
namespace {

template <class T>
void put(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <class T>
void put_all(std::string& key, std::span<const T> values) {
  // The length comes first: two lists in a row must not read as two others.
  put(key, values.size());
  key.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// All that a shape rule may ask about the arguments.
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
        // Operators such as resize_ and set_ ask how long the storage is.
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
  if (!id.valid()) id = made_.intern_operator(name);
  return id;
}

// Arguments hold places in the pools of their graph, so they are made again in the new one. Constants have the same ids in
// both.
Argument NodeEmitter::copied(const Argument& argument) {
  if (argument.kind == ArgumentKind::kList) return mapped(argument, [](ValueId) { return ValueId(); });
  return copied_argument(made_, read_, argument, [](const Argument& element) { return element; });
}

NodeId NodeEmitter::append(TargetId target, std::span<const Argument> arguments) {
  const NodeId id = made_.append(target, arguments);
  Node& node = mutable_node(made_, id);
  const Node& model = read_.node(model_);
  node.region = model.region;
  node.phase = model.phase;
  node.flags = model.flags;
  node.forward = forward_;
  if (model.source.valid()) node.source = made_.intern(read_.text(model.source));
  return id;
}

// A fresh storage for a result. `bytes` is what the operator allocated, which may be more than the result reaches.
StorageId NodeEmitter::add_storage(NodeId born, const TensorGeometry& geometry, int64_t bytes) {
  Storage storage;
  storage.born = born;
  storage.device_type = geometry.device.type();
  storage.device_index = geometry.device.index();
  const auto extent =
      extent_of({geometry.sizes.data(), geometry.sizes.size()}, {geometry.strides.data(), geometry.strides.size()});
  const int64_t reached = extent.value_or(0) == 0 ? 0 : (*extent + geometry.offset) * geometry.itemsize();
  // A storage shorter than what reaches into it would fail the verifier.
  storage.bytes = std::max(bytes, reached);
  return made_.add_storage(storage);
}

ValueId NodeEmitter::add_result(NodeId node, const TensorGeometry& geometry, StorageId storage, bool requires_grad) {
  TensorMeta spec;
  spec.dtype = geometry.dtype;
  spec.sizes = {geometry.sizes.data(), geometry.sizes.size()};
  spec.strides = {geometry.strides.data(), geometry.strides.size()};
  spec.storage = storage;
  spec.offset = geometry.offset;
  spec.device = geometry.device;
  spec.requires_grad = requires_grad;
  return made_.add_tensor_result(node, spec);
}

ValueId NodeEmitter::call(TargetId target, std::initializer_list<Argument> arguments, const TensorGeometry& geometry,
                          StorageId storage) {
  const NodeId node = append(target, arguments);
  return add_result(node, geometry, storage.valid() ? storage : add_storage(node, geometry));
}

std::string NodeEmitter::key_of(NodeId node) const {
  std::string key;
  put(key, made_.node(node).target);
  put_arguments(key, made_, made_.arguments(node));
  return key;
}

// Runs the call on fakes of the operands' geometry and notes what its results look like. Only the geometry is kept; the
// fakes die here.
NodeEmitter::Results NodeEmitter::run_on_fakes(NodeId node) {
  if (!mode_) mode_ = std::make_unique<FakeTensorMode>(of_any_machine());
  // Graphs hold what ran below autograd; above it the call could record nodes of its own.
  const BelowAutograd below;
  // A deque: tensor_of returns references, so a fake must stay where it is while later ones are made.
  std::deque<at::Tensor> fakes;
  torch::jit::Stack stack;
  calls_.push_arguments(
      node,
      [&](ValueId v) -> const at::Tensor& {
        fakes.push_back(fake_of(made_, v));
        return fakes.back();
      },
      stack);
  calls_.call(node, stack);
  Results results;
  const auto look_at = [](const at::Tensor& tensor) {
    Found found;
    found.geometry.dtype = tensor.scalar_type();
    found.geometry.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    found.geometry.strides.assign(tensor.strides().begin(), tensor.strides().end());
    found.geometry.offset = tensor.storage_offset();
    found.geometry.device = tensor.device();
    found.bytes = static_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes());
    return found;
  };
  for (const c10::IValue& value : stack) {
    auto& found = results.found.emplace_back();
    results.is_list.push_back(value.isTensorList());
    if (value.isTensor()) {
      if (value.toTensor().defined()) found.push_back(look_at(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(look_at(tensor));
    } else {
      throw Error("a result that is no tensor");
    }
  }
  return results;
}

// Gives an appended call its results, each on a storage of its own. False if the call cannot be run on fakes.
bool NodeEmitter::find_results(NodeId node) {
  // Failures are remembered as well: a layer that repeats asks the same question each time.
  const auto [entry, added] = known_.try_emplace(key_of(node));
  if (added) {
    try {
      entry->second = run_on_fakes(node);
    } catch (const std::exception&) {
      // Not callable here: no operator, no rule, or it refuses these operands. The caller has another way.
      entry->second = std::nullopt;
    }
  }
  if (!entry->second) return false;
  const Results& known = *entry->second;
  std::vector<Argument> results;
  for (size_t r = 0; r < known.found.size(); ++r) {
    std::vector<Argument> elements;
    for (const Found& found : known.found[r]) {
      TensorMeta spec;
      spec.dtype = found.geometry.dtype;
      spec.sizes = {found.geometry.sizes.data(), found.geometry.sizes.size()};
      spec.strides = {found.geometry.strides.data(), found.geometry.strides.size()};
      spec.offset = found.geometry.offset;
      spec.device = found.geometry.device;
      spec.storage = add_storage(node, found.geometry, found.bytes);
      elements.push_back(Argument::of_value(made_.new_tensor(node, spec)));
    }
    if (known.is_list[r]) {
      results.push_back(made_.make_list(elements));
    } else {
      results.push_back(elements.empty() ? Argument::none() : elements.front());
    }
  }
  made_.set_results(node, results);
  return true;
}

ValueId NodeEmitter::call(TargetId target, std::initializer_list<Argument> arguments) {
  const NodeId node = append(target, arguments);
  if (!find_results(node)) throw Error("cannot find the shape of a call of " + made_.target(target).name());
  return made_.results(node).front().ref.value;
}

// A view by geometry alone, for places to which no chain of named views leads.
ValueId NodeEmitter::as_strided(ValueId source, const TensorGeometry& geometry) {
  const Argument arguments[] = {
      Argument::of_value(source), made_.int_list({geometry.sizes.data(), geometry.sizes.size()}),
      made_.int_list({geometry.strides.data(), geometry.strides.size()}), Argument::of_int(geometry.offset)};
  const NodeId node = append(target("aten::as_strided"), arguments);
  return add_result(node, geometry, made_.value(source).storage);
}

// The storage as one row of a dtype: what a part of it is written into, whatever views the program had.
ValueId NodeEmitter::flat(ValueId source, c10::ScalarType dtype, int64_t bytes) {
  const StorageId storage = made_.value(source).storage;
  TensorGeometry row;
  row.dtype = made_.value(source).dtype;
  row.device = made_.value(source).device();
  row.strides = {1};
  const auto wanted = static_cast<int64_t>(c10::elementSize(dtype));
  // Both element sizes are powers of two, so the larger one is a multiple of the smaller one.
  const int64_t unit = std::max(wanted, row.itemsize());
  row.sizes = {bytes / unit * (unit / row.itemsize())};
  const auto sizes = made_.sizes(source);
  const bool is_row =
      sizes.size() == 1 && sizes[0] == row.sizes[0] && made_.strides(source)[0] == 1 && made_.value(source).offset == 0;
  ValueId result = is_row ? source : as_strided(source, row);
  // The row holds whole elements of both types, as a view of another dtype demands.
  if (row.dtype == dtype) return result;
  row.sizes = {bytes / unit * (unit / wanted)};
  row.dtype = dtype;
  return call(target("aten::view.dtype"), {Argument::of_value(result), Argument::of_int(static_cast<int64_t>(dtype))},
              row, storage);
}

ValueId NodeEmitter::expand(ValueId source, std::span<const int64_t> sizes) {
  TensorGeometry geometry = TensorGeometry::of(made_, source);
  if (std::equal(sizes.begin(), sizes.end(), geometry.sizes.begin(), geometry.sizes.end())) return source;
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
  return call(target("aten::expand"), {Argument::of_value(source), made_.int_list(sizes), Argument::of_bool(false)},
              geometry, made_.value(source).storage);
}

}  // namespace shadowgraph
