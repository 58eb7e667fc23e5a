// Turns one operator call into a graph of one node, for the planner. Internal to kernels/replay.
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
  std::vector<ValueId> arguments;  // by position on the stack; invalid: no tensor
};

// Takes the arguments from the end of the stack. Results have the geometry that the Meta kernel gives. Throws
// UnsupportedError for a call that no kernel takes, c10::Error for one that the operator refuses.
CallGraph call_graph(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Computes what results look like, by our rule where libtorch has no Meta kernel or a wrong one. Takes meta tensors from
// the stack, and leaves results there.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& metas);

// Returns the number that a wrapped number stands for.
c10::Scalar number_of(const at::Tensor& wrapped);

// Splits calls of operators over lists of tensors (_foreach_add_, _fused_adamw_) into calls of their elements. Internal
// to kernels.

// Returns what an operator over lists is for one element. That is the operator of single tensors (aten::add_.Tensor for
// aten::_foreach_add_.List), or the operator itself, which then gets tensors for lists (optimizer steps). Returns
// nothing if kernels are made of neither.
std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op);

// Returns the number of elements, -1 where lists differ in length. An empty list stands for none.
int64_t list_length(std::span<const c10::IValue> arguments);
// Returns the arguments of `element`'s call for element `i`.
torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i);

}  // namespace shadowgraph
