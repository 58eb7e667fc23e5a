// One operator call as a graph of one node, for the planner. Internal to kernels/replay.
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

// The arguments are the last of the stack. Results have the geometry that the Meta kernel gives. Throws KernelError for
// what no kernel takes, c10::Error for what the operator refuses.
CallGraph call_graph(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

// The number that a wrapped number is.
c10::Scalar number_of(const at::Tensor& wrapped);

}  // namespace shadowgraph
