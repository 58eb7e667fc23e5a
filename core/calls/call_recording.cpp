#include "core/calls/call_recording.h"

#include "core/calls/call_record.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

void set_default_device(FakeTensorMode& mode, c10::Device device) { state_of(mode).default_device = device; }

CallRecording::Scope::Scope(CallRecording& recording, FakeTensorMode& mode) : mode_(mode) {
  state_of(mode_).observer = &recording;
}
CallRecording::Scope::~Scope() { state_of(mode_).observer = nullptr; }

void CallRecording::begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) {
  arguments_.clear();
  for (const CallArgument& argument : arguments) arguments_.push_back(argument_of(argument.value()));
}

void CallRecording::end_call(const OperatorInfo& info, std::span<const CallArgument> results) {
  const NodeId node = at_.insert(graph_.intern_target(info.target), arguments_);
  inserted_.push_back(node);
  std::vector<Argument> made;
  for (const CallArgument& result : results) made.push_back(result_of(result.value(), node));
  graph_.set_results(node, made);
}

Argument CallRecording::argument_of(const c10::IValue& value) {
  return shadowgraph::argument_of(graph_, value, [this](const at::Tensor& tensor) {
    if (is_fake(tensor)) return Argument::of_value(value_of(tensor));
    TORCH_CHECK(tensor.dim() == 0 && tensor.device().is_cpu(), "the function to expand an operator met a real tensor");
    return number_of(graph_, tensor);
  });
}

// A storage that is met first in a result is new to the graph.
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

// Records a tensor that no call gave as an alias of one on its storage; detach makes such below autograd.
ValueId CallRecording::alias(const at::Tensor& tensor) {
  const auto storage = storages_.find(tensor.storage().unsafeGetStorageImpl());
  TORCH_CHECK(storage != storages_.end(), "the function to expand an operator met a fake tensor from outside");
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

Argument CallRecording::result_of(const c10::IValue& value, NodeId node) {
  return shadowgraph::result_of(graph_, node, value, [&](const at::Tensor& tensor) {
    return is_fake(tensor) ? Argument::of_value(new_value(node, tensor)) : Argument::none();
  });
}

}  // namespace shadowgraph
