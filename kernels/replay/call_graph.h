// Converts one operator call to a graph of one node, for the planner. Internal to kernels/replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <span>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

struct CallGraph {
  Graph graph;
  NodeId node;
  std::vector<ValueId> arguments;  // by position on the stack; invalid if not a tensor
};

// Takes the arguments from the end of the stack. Results have the geometry given by the Meta kernel. Throws
// UnsupportedError for unsupported calls, c10::Error for invalid ones.
CallGraph call_graph(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Computes the geometry of results, by shadowgraph's shape rule if libtorch has no correct Meta kernel. Takes meta
// tensors from the stack, and leaves results there.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& metas);
// Returns whether call_on_meta is running on this thread. Operators that it calls on real tensors (factories without a
// device, numbers) must run their original kernels: looking up another kernel for them would not end.
bool is_calling_on_meta();
// Returns a meta tensor with the geometry and dtype of `tensor`, a wrapped number if it is one.
at::Tensor meta_like(const at::Tensor& tensor);

// Returns the value of a wrapped number.
c10::Scalar number_of(const at::Tensor& wrapped);

// Splits calls of operators over lists of tensors (_foreach_add_, _fused_adamw_) into calls per element.

// Returns the operator that applies a list operator to one element: the single-tensor operator (aten::add_.Tensor for
// aten::_foreach_add_.List), or the operator itself with tensors instead of lists (optimizer steps). Returns nullopt if
// neither can be compiled.
std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op);

// Returns the number of elements; -1 if lists differ in length. Empty lists are ignored, as omitted arguments.
int64_t list_length(std::span<const c10::IValue> arguments);
// Returns the arguments of the call of `element` for element `i`.
torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i);

}  // namespace shadowgraph
