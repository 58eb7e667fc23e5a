// Turns one operator call into a graph of one node, for the planner. Internal to kernels/replay.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct CallGraph {
  Graph graph;
  NodeId node;
  std::vector<ValueId> arguments;  // by position on the stack; invalid: no tensor
};

// Takes the arguments from the end of the stack. Results have the geometry that the Meta kernel gives. Throws
// KernelError for a call that no kernel takes, c10::Error for one that the operator refuses.
CallGraph call_graph(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// Computes what results look like, by our rule where libtorch has no Meta kernel or a wrong one. Takes meta tensors from
// the stack, and leaves results there.
void call_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& metas);

// Returns the number that a wrapped number stands for.
c10::Scalar number_of(const at::Tensor& wrapped);

}  // namespace shadowgraph
