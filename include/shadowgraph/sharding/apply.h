// A captured step and a plan, written as the program that one device of the mesh runs.
//
//     const ShardedGraph mine = apply(step.graph, plan, /*rank=*/3);
//     profile(mine.graph);                        // or draw it, write it as C++ or Python, replay it on a real group
//
// The graph is an ordinary one: local sizes, `_c10d_functional` operators for collectives, offsets of the rank as
// numbers. Groups are called like the axes of the mesh, and described as captures describe them
// (shadowgraph/process_group.h). All ranks have the same nodes in the same order. Every operator is called again on
// fake tensors of local sizes, so strides, storages and views are what the operators make of them.
//
// The order of nodes stays, with phases, regions, forward links, source lines, flags, notes and where storages die. So
// do the tensors that autograd keeps (the local ones).
//
// The way from one layout to another comes in, before the first node that needs it. It has that node's phase, region
// and source, and a note "redistribution" that says from where to where. A copy serves all users of its phase, as
// shadowgraph/sharding/plan.h says. It dies after the last use of it or of its views; what is made on the way to it
// dies where it was used. Guards on the sizes of tensors that are cut are left out.
//
// A redistribution is made of these nodes, with x the local part:
//
//     slice            aten::slice or aten::select, then a contiguous aten::clone
//     all_gather       all_gather_into_tensor, wait_tensor; one clone more unless the pieces are whole blocks
//     all_reduce       all_reduce, wait_tensor; for P(avg) a sum and aten::div (gloo has no average)
//     reduce_scatter   one clone unless the pieces are whole blocks, reduce_scatter_tensor, wait_tensor
//     all_to_all       both of these clones, around all_to_all_single
//
// A collective's operand that is not contiguous is cloned first. A dimension may go from one cut to another whose
// pieces are not equally spread over the old ones. There is no all_to_all of equal parts then: the old pieces are
// gathered and sliced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/plan.h"
#include "shadowgraph/sharding/redistribution.h"
#include "shadowgraph/sharding/rules.h"

namespace SHADOWGRAPH_API shadowgraph {

// A plan does not fit the graph. No strategy of a node gives a layout, a layout does not divide, or a copy would stand
// for a tensor that is written to. what() names the node and the layouts.
class ShardingError : public Error {
 public:
  ShardingError(const std::string& message, NodeId node) : Error(message), node_(node) {}
  NodeId node() const { return node_; }  // of the graph that is read; invalid if it is about none

 private:
  NodeId node_;
};

struct ApplyOptions {
  const ShardingRules* rules = nullptr;            // nullptr: the built-in ones and those registered
  const RedistributionPlanner* planner = nullptr;  // of the plan's mesh; nullptr: one for "h100" links
  // Random operators whose tensors are cut: each device then draws numbers of its own, others than the program drew.
  // Without this they are refused.
  bool random_parts = false;
};

// What goes in or comes out of a program, and how it lies.
struct ShardedTensor {
  std::string name;  // of outputs: empty
  Layout layout;
  std::vector<int64_t> sizes;  // of the whole
  bool defined = true;         // outputs alone: false where the program gave None
};

struct ShardedGraph {
  Graph graph;
  DeviceMesh mesh;
  int64_t rank = 0;
  std::vector<ShardedTensor> inputs;     // parameters, buffers and inputs, in program order; constants are cut already
  std::vector<ShardedTensor> outputs;    // of sg::output
  std::vector<ShardedTensor> gradients;  // of sg::gradient, by the parameter's name

  // All but the graph is in the graph's notes: of one that apply() wrote, perhaps long ago in another process. Throws
  // Error if it is not.
  static ShardedGraph of(Graph graph);
};

// Throws ShardingError; Error if the mesh has no such rank or the graph has a process group called like one of its axes.
// Linear, about what shape propagation costs.
ShardedGraph apply(const Graph& graph, const ShardingPlan& plan, int64_t rank, const ApplyOptions& options = {});

}  // namespace shadowgraph
