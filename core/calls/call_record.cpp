#include "core/calls/call_record.h"

#include "core/calls/program_generators.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/process_groups.h"

namespace shadowgraph {

bool is_decomposed(const c10::OperatorHandle& op) { return OperatorInfo::of(op).route == Route::kComposite; }

Argument argument_of(Graph& graph, const c10::IValue& value, TensorArgument tensor) {
  if (value.isTensor()) return value.toTensor().defined() ? tensor(value.toTensor()) : Argument::none();
  if (value.isNone()) return Argument::none();
  if (value.isInt()) return Argument::of_int(value.toInt());
  if (value.isBool()) return Argument::of_bool(value.toBool());
  if (value.isDouble()) return Argument::of_float(value.toDouble());
  if (value.isIntList()) {
    c10::SmallVector<int64_t, 8> ints;
    for (const c10::IValue& element : value.toListRef()) ints.push_back(element.toInt());
    return graph.int_list({ints.data(), ints.size()});
  }
  if (value.isDevice()) return Argument::of_device(value.toDevice());
  if (value.isString()) return graph.string_argument(value.toStringRef());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return graph.complex_argument(number.real(), number.imag());
  }
  if (value.isList()) {
    c10::SmallVector<Argument, 8> elements;
    for (const c10::IValue& element : value.toListRef()) elements.push_back(argument_of(graph, element, tensor));
    return graph.make_list({elements.data(), elements.size()});
  }
  if (value.isGenerator()) return argument_of(value.toGenerator());
  if (const auto name = name_of_object(value)) return graph.string_argument(*name);
  Argument opaque = graph.string_argument(value.type()->str());
  opaque.kind = ArgumentKind::kOpaque;
  return opaque;
}

Argument result_of(Graph& graph, NodeId node, const c10::IValue& value, TensorArgument tensor) {
  if (value.isTensor()) return value.toTensor().defined() ? tensor(value.toTensor()) : Argument::none();
  if (value.isTensorList()) {
    c10::SmallVector<Argument, 8> elements;
    for (const c10::IValue& element : value.toListRef()) elements.push_back(result_of(graph, node, element, tensor));
    return graph.make_list({elements.data(), elements.size()});
  }
  if (value.isInt()) return Argument::of_value(graph.new_scalar(node, ValueKind::kInt));
  if (value.isDouble()) return Argument::of_value(graph.new_scalar(node, ValueKind::kFloat));
  if (value.isBool()) return Argument::of_value(graph.new_scalar(node, ValueKind::kBool));
  return Argument::none();
}

Argument number_of(Graph& graph, const at::Tensor& tensor) {
  const void* data = tensor.unsafeGetTensorImpl()->data();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return Argument::of_float(*static_cast<const double*>(data));
    case at::kLong:
      return Argument::of_int(*static_cast<const int64_t*>(data));
    case at::kBool:
      return Argument::of_bool(*static_cast<const bool*>(data));
    case at::kComplexDouble: {
      const auto number = *static_cast<const c10::complex<double>*>(data);
      return graph.complex_argument(number.real(), number.imag());
    }
    default:
      return Argument::of_constant(graph.add_constant(tensor));
  }
}

TensorMeta spec_of(const FakeTensorImpl& fake, StorageId storage) {
  return {.dtype = fake.dtype().toScalarType(),
          .sizes = {fake.sizes().data(), fake.sizes().size()},
          .strides = {fake.strides().data(), fake.strides().size()},
          .storage = storage,
          .offset = fake.storage_offset(),
          .device = fake.simulated_device()};
}

Storage storage_of(const FakeTensorImpl& fake, NodeId born) {
  const c10::Device device = fake.simulated_device();
  return {.bytes = fake.allocated_bytes(), .device_type = device.type(), .device_index = device.index(), .born = born};
}

TensorMeta spec_of(const at::Tensor& fake, StorageId storage) { return spec_of(*as_fake(fake), storage); }

Storage storage_of(const at::Tensor& fake, NodeId born) { return storage_of(*as_fake(fake), born); }

void set_default_device(FakeTensorMode& mode, c10::Device device) { state_of(mode).default_device = device; }

CallRecording::Scope::Scope(CallRecording& recording, FakeTensorMode& mode) : mode_(mode) {
  state_of(mode_).observer = &recording;
}
CallRecording::Scope::~Scope() { state_of(mode_).observer = nullptr; }

void CallRecording::begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  const auto tensor_argument = [this](const at::Tensor& tensor) {
    if (is_fake(tensor)) return Argument::of_value(value_of(tensor));
    TORCH_CHECK(tensor.dim() == 0 && tensor.device().is_cpu(),
                "the decomposition function uses a real tensor; it may only use its arguments and numbers");
    return number_of(graph_, tensor);
  };
  arguments_.clear();
  for (const CallArgument& argument : arguments) {
    arguments_.push_back(argument_of(graph_, argument.value(), tensor_argument));
  }
}

void CallRecording::end_call(const OperatorInfo& info, std::span<const CallArgument> results) {
  const NodeId node = at_.insert(graph_.intern_target(info.target), arguments_);
  inserted_.push_back(node);
  const auto tensor_result = [&](const at::Tensor& tensor) {
    return is_fake(tensor) ? Argument::of_value(new_value(node, tensor)) : Argument::none();
  };
  std::vector<Argument> made;
  for (const CallArgument& result : results) made.push_back(result_of(graph_, node, result.value(), tensor_result));
  graph_.set_results(node, made);
}

// A storage first seen in a result is added to the graph.
ValueId CallRecording::new_value(NodeId node, const at::Tensor& tensor) {
  const FakeTensorImpl& fake = *as_fake(tensor);
  const auto [storage, added] = storages_.try_emplace(fake.unsafe_storage().unsafeGetStorageImpl(), StorageId());
  if (added) {
    storage->second = graph_.add_storage(storage_of(fake, node));
    fresh_.push_back(storage->second);
  }
  const ValueId value = graph_.new_tensor(node, spec_of(fake, storage->second));
  held_.push_back(tensor);
  values_[tensor.unsafeGetTensorImpl()] = value;
  return value;
}

// Records a tensor that is not a call's result as an alias of one on its storage.
ValueId CallRecording::alias(const at::Tensor& tensor) {
  const auto storage = storages_.find(tensor.storage().unsafeGetStorageImpl());
  TORCH_CHECK(storage != storages_.end(),
              "the decomposition function uses a fake tensor from elsewhere; it may only use its arguments");
  ValueId source;
  for (const at::Tensor& known : held_) {
    if (known.storage().is_alias_of(tensor.storage())) source = values_[known.unsafeGetTensorImpl()];
  }
  const NodeId node = at_.insert(target_of(Builtin::kAlias), {Argument::of_value(source)});
  inserted_.push_back(node);
  const ValueId value = new_value(node, tensor);
  const Argument result[] = {Argument::of_value(value)};
  graph_.set_results(node, result);
  return value;
}

}  // namespace shadowgraph
