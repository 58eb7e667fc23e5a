// Says which operators no graph holds: those that run as others, which are recorded in their place.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <span>
#include <unordered_map>
#include <vector>

#include "core/fake/call_observer.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

bool runs_as_others(const c10::OperatorHandle& op);

// Writes a call on fake tensors in the graph's words: what it was given and what it gave. The recorder uses it, and so
// do passes that run something on fakes and keep what it calls (passes/decompose/decompositions.h,
// shadowgraph/passes/simplify.h). Only the caller knows which Value a tensor is, so it says that; everything else is
// here.
//
//     arguments.push_back(argument_of(graph, ivalue, [&](const at::Tensor& t) { return Argument::of_value(known[t]); }));

class FakeTensorImpl;

// It is called with defined tensors only.
using TensorArgument = c10::function_ref<Argument(const at::Tensor&)>;

// Returns an argument for any value; lists nest. A process group and a reduction become their names
// (core/fake/process_groups.h). An object that a graph cannot hold becomes an opaque argument with the name of its
// type.
Argument argument_of(Graph& graph, const c10::IValue& value, TensorArgument tensor);

// Returns tensors, lists of them and fresh scalars as arguments; none for anything else.
Argument result_of(Graph& graph, NodeId node, const c10::IValue& value, TensorArgument tensor);

// Returns a real 0-dimensional CPU tensor, such as the number that the C++ API wraps (x * 2). It becomes a number if an
// argument has its type, otherwise a constant of the graph.
Argument number_of(Graph& graph, const at::Tensor& tensor);

// Describes a value as the fake is now, in `storage`. The spans are the fake's: use them before that changes.
TensorMeta spec_of(const FakeTensorImpl& fake, StorageId storage);
TensorMeta spec_of(const at::Tensor& fake, StorageId storage);

// Describes the fake's storage as a temporary that `born` made.
Storage storage_of(const FakeTensorImpl& fake, NodeId born);
Storage storage_of(const at::Tensor& fake, NodeId born);

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
