// Records what a function calls on fake tensors, as nodes of a graph before one of its nodes. A pass so replaces a node by
// what some function makes of it.
//
//     CallRecording recording(graph, node, inserted);
//     recording.know(operand, fake);                       // for each operand of the node
//     const CallRecording::Scope recorded(recording, mode);
//     function(fake);                                      // its calls are nodes now
//     recording.value_of(result);                          // the value that a result of it is
//
// It holds every tensor that it meets, so that an address means one tensor. Throws c10::Error for a tensor from outside.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <unordered_map>
#include <vector>

#include "core/fake/call_observer.h"
#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Factories that name no device make their tensors there.
void set_default_device(FakeTensorMode& mode, c10::Device device);

class CallRecording final : public CallObserver {
 public:
  CallRecording(Graph& graph, NodeId node, std::vector<NodeId>& inserted)
      : graph_(graph), at_(graph, node), inserted_(inserted) {}

  void know(ValueId value, const at::Tensor& tensor) {
    held_.push_back(tensor);
    values_[tensor.unsafeGetTensorImpl()] = value;
    storages_.try_emplace(tensor.storage().unsafeGetStorageImpl(), graph_.value(value).storage);
  }
  // A tensor that no call gave is an alias, such as detach makes below autograd.
  ValueId value_of(const at::Tensor& tensor) {
    const auto known = values_.find(tensor.unsafeGetTensorImpl());
    return known != values_.end() ? known->second : alias(tensor);
  }
  const std::vector<StorageId>& fresh() const { return fresh_; }
  bool is_fresh(StorageId storage) const { return !fresh_.empty() && storage >= fresh_.front(); }

  // The observer sees calls below autograd, so composites that the function calls are in parts already.
  // While it lives, calls under `mode` on this thread are recorded.
  class Scope {
   public:
    Scope(CallRecording& recording, FakeTensorMode& mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    FakeTensorMode& mode_;
  };

  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo&) noexcept override {}
  void enter_composite(const OperatorInfo&, std::span<const CallArgument>) override {}
  void leave_composite() noexcept override {}

 private:
  Argument argument_of(const c10::IValue& value);
  Argument result_of(const c10::IValue& value, NodeId node);
  ValueId new_value(NodeId node, const at::Tensor& tensor);
  ValueId alias(const at::Tensor& tensor);

  Graph& graph_;
  InsertionPoint at_;
  std::vector<NodeId>& inserted_;
  std::vector<Argument> arguments_;
  std::vector<at::Tensor> held_;
  std::unordered_map<const c10::TensorImpl*, ValueId> values_;
  std::unordered_map<const c10::StorageImpl*, StorageId> storages_;
  std::vector<StorageId> fresh_;
};

}  // namespace shadowgraph
