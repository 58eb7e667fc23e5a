// Calls nodes of a graph again on fake tensors, under the conditions in which the capture met them. Passes and sharding
// reach core by this.
//
//     CallsOnFakes calls(graph);
//     torch::jit::Stack stack;
//     calls.push_arguments(node, [&](ValueId v) -> const at::Tensor& { return tensors[v]; }, stack);
//     calls.call(node, device_of_result, stack);       // stack now holds the results, as many as the schema returns
//
// A FakeTensorMode is active on this thread while it lives; the grad mode is put back at its end. A graph was recorded
// below autograd, so the caller switches that off (BelowAutograd).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "core/calls/node_calls.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// A device with an index, which a tensor always has: "cuda" is the current one.
c10::Device indexed(c10::Device device);

class CallsOnFakes {
 public:
  // `graph` must outlive this; nodes and targets may be added meanwhile.
  explicit CallsOnFakes(const Graph& graph, const FakeTensorOptions& options = {});

  // Sizes that depend on data: those given, and those that the guards of `captured` tell.
  void give_sizes(const Graph& captured, const NamedDataSizes& given);
  // Reads of the host are answered as the guards of `captured` tell.
  void give_answers(const Graph& captured);
  // Gives `tensor` its contents where a guard says that the capture took the value for a mask of ones.
  void fill_if_assumed(const Graph& captured, ValueId value, const at::Tensor& tensor) const;

  void push_arguments(NodeId node, NodeCalls::TensorOf tensor_of, torch::jit::Stack& stack) {
    calls_.push_arguments(node, tensor_of, stack);
  }
  // Factories that named no device put their results on `device`, since the record has none of theirs. Operands whose
  // geometry the operator may change are called as tensors of their own, so that `tensor_of` keeps what it gave.
  void call(NodeId node, std::optional<c10::Device> device, torch::jit::Stack& stack);

  FakeTensorMode& mode() { return mode_; }

 private:
  const Graph& graph_;
  NodeCalls calls_;
  FakeTensorMode mode_;
  c10::AutoGradMode grad_mode_;  // restores it
};

}  // namespace shadowgraph
