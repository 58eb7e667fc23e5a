// A node's operator called again, on tensors that the caller chooses: what shape propagation and rewrites by function
// are made of.
//
//     NodeCalls calls(graph);
//     torch::jit::Stack stack;
//     calls.push_arguments(node, [&](ValueId v) -> const at::Tensor& { return tensors[v]; }, stack);
//     calls.call(node, stack);                      // stack now holds the results, as many as the schema returns
//
// The operator runs through the dispatcher, whatever the tensors are: fake ones give shapes, real ones results. A graph
// is recorded below autograd, so the caller switches autograd off (BelowAutograd), or every call would be recorded in a
// tape that nobody reads.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <optional>
#include <vector>

#include "core/calls/call_templates.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/graph/signature.h"

namespace shadowgraph {

class NodeCalls {
 public:
  // `graph` must outlive this; nodes and targets may be added meanwhile.
  explicit NodeCalls(const Graph& graph) : graph_(graph), arguments_(graph) {}

  using TensorOf = c10::function_ref<const at::Tensor&(ValueId)>;
  // As the interpreter makes them (core/calls/call_templates.h). Throws Error for arguments that no text form holds
  // (custom classes), and for numbers that other nodes compute.
  void push_arguments(NodeId node, TensorOf tensor_of, torch::jit::Stack& stack);
  // A registered function's shape rule is called, so its tensors must be fake. Throws Error if this process does not
  // have the operator or function, and what that throws.
  void call(NodeId node, torch::jit::Stack& stack);

  const c10::OperatorHandle& operator_of(NodeId node);
  const Signature& formals_of(NodeId node) { return graph_.target(node).signature(); }

 private:
  const Graph& graph_;
  CallTemplates arguments_;                                    // of one node at a time
  std::vector<std::optional<c10::OperatorHandle>> operators_;  // by TargetId
};

// While it lives, calls on this thread skip autograd, autocast and the recording of composite operators.
class BelowAutograd {
 public:
  BelowAutograd();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace shadowgraph
