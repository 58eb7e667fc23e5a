// Records calls on fake tensors in a graph.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/FunctionRef.h>

#include "core/fake/call_observer.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Returns whether the operator decomposes: graphs contain its parts, not the operator itself.
bool is_decomposed(const c10::OperatorHandle& op);

// Converts the arguments and results of a call on fake tensors. Used by the recorder, and by passes that run a function
// on fake tensors and record its calls (passes/decompose/decompositions.h, shadowgraph/passes/simplify.h). The caller
// maps tensors to values.
//
//     arguments.push_back(argument_of(graph, value, [&](const at::Tensor& t) { return Argument::of_value(ids[t]); }));

class FakeTensorImpl;

// Called with defined tensors only.
using TensorArgument = c10::function_ref<Argument(const at::Tensor&)>;

// Converts any value; lists nest. A process group or reduction is recorded by name (core/fake/process_groups.h). An
// object that a graph cannot hold becomes an opaque argument with the name of its type.
Argument argument_of(Graph& graph, const c10::IValue& value, TensorArgument tensor);

// Converts tensors, lists of tensors and new scalars; none for other values.
Argument result_of(Graph& graph, NodeId node, const c10::IValue& value, TensorArgument tensor);

// Converts a real 0-dimensional CPU tensor, such as a wrapped number (x * 2), to a number if arguments support its
// type, otherwise to a constant of the graph.
Argument number_of(Graph& graph, const at::Tensor& tensor);

// Returns the current metadata of a fake on `storage`. The spans refer to the fake and are invalidated by changes.
TensorMeta spec_of(const FakeTensorImpl& fake, StorageId storage);
TensorMeta spec_of(const at::Tensor& fake, StorageId storage);

// Returns the fake's storage as a temporary allocated by `born`.
Storage storage_of(const FakeTensorImpl& fake, NodeId born);
Storage storage_of(const at::Tensor& fake, NodeId born);

// Records the calls of a function on fake tensors as nodes before a node, for passes that replace the node by them.
//
//     CallRecording recording(graph, node, inserted);
//     recording.know(operand, fake);                       // for each operand of the node
//     const CallRecording::Scope recorded(recording, mode);
//     function(fake);                                      // its calls become nodes
//     recording.value_of(result);                          // the value of a result
//
// Keeps all tensors alive, so that addresses identify them. Throws c10::Error for a tensor from elsewhere.

// Sets the device of factories that do not specify one.
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
  // A tensor that is not a call's result, such as that of detach below autograd, becomes an alias.
  ValueId value_of(const at::Tensor& tensor) {
    const auto known = values_.find(tensor.unsafeGetTensorImpl());
    return known != values_.end() ? known->second : alias(tensor);
  }
  const std::vector<StorageId>& fresh() const { return fresh_; }
  bool is_fresh(StorageId storage) const { return !fresh_.empty() && storage >= fresh_.front(); }

  // Records calls under `mode` on this thread for its lifetime. The observer is below autograd, so composites are
  // already decomposed.
  class Scope {
   public:
    Scope(CallRecording& recording, FakeTensorMode& mode);
    ~Scope();
    C10_DISABLE_COPY_AND_ASSIGN(Scope);

   private:
    FakeTensorMode& mode_;
  };

  void begin_call(const OperatorInfo& info, std::span<const CallArgument> arguments) override;
  void end_call(const OperatorInfo& info, std::span<const CallArgument> results) override;
  void abandon_call(const OperatorInfo&) noexcept override {}

 private:
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
