// A plan: how every tensor of a captured step lies on a mesh, and the changes of layout that follow from it.
//
//     for (const PlannedCopy& copy : copies_of(graph, plan, planner)) ...      // S(0) -> R before %12, an all_gather
//
// ShardingProblem (shadowgraph/shard/problem.h) makes plans; apply() (shadowgraph/shard/apply.h) writes one
// device's graph of a plan.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/rules.h"

namespace SHADOWGRAPH_API shadowgraph {

// How a node takes and gives its tensors, in the order of for_each_input and for_each_output, values that are no
// tensors left out.
struct NodeLayouts {
  std::vector<Layout> operands;
  std::vector<Layout> results;
};

// Where a result and an operand that uses it differ, the tensor is redistributed before the first node that needs it
// so. The copy serves all nodes of the same phase that need that layout, as long as nothing writes to the tensor. It
// dies after the last of them. No copy can stand for an operand that a node writes to. Nor can one stand for a view
// whose memory is written to while it is in use. Those have the layout of the tensor that is meant.
struct ShardingPlan {
  DeviceMesh mesh;
  IdMap<NodeId, NodeLayouts> nodes;  // sg::input and its like have results, sg::output operands
};

// Writes nodes by the numbers of the graph's text:
//
//     {"format": "shadowgraph-sharding-plan", "version": 1, "mesh": [{"name": "x", "size": 8}],
//      "nodes": [{"node": 329, "name": "aten::mm", "operands": ["S(0)", "R"], "results": ["S(0)"]}]}
//
// Reading throws ParseError for what is no plan of this graph.
nlohmann::json to_json(const ShardingPlan& plan, const Graph& graph);
ShardingPlan sharding_plan_from_json(const nlohmann::json& json, const Graph& graph);

// One change of layout that a plan makes: what serves how many operands.
struct PlannedCopy {
  ValueId value;
  PhaseId phase;
  Layout from, to;
  NodeId before;  // the first node that takes it
  Redistribution way;
};
// In program order of the nodes that first need them. Throws Error where a plan asks for what is not possible.
std::vector<PlannedCopy> copies_of(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner);

// The phase that a node's copies belong to: its own, but sg::gradient is of the optimizer, where there is one.
PhaseId phase_of_copies(const Graph& graph, NodeId node);

// Collectives of tensor parallel beside products, in the program of one rank.
//
//     Graph rank = apply(step.graph, plan, 0).graph;           // waits for each collective where it stands
//     overlap_collectives(rank, CollectiveOverlap::kBackward);
//
// A linear layer that is cut by columns has its input gradient summed over the ranks. Its weight gradient needs nothing
// of that sum, so engines compute it meanwhile:
//
//     dW = mm(dY^T, X)                              X'  = all_gather(x)        x: this rank's part of X
//     dX = mm(dY, W)                   ->           dX  = mm(dY, W)
//     dx = reduce_scatter(dX)                       dx  = reduce_scatter(dX)
//     wait(dx)                                      dW  = mm(dY^T, wait(X'))
//                                                   wait(dx)
//
// Values stay what they are, and what writes to memory keeps its order (shadowgraph/graph/analysis.h). All ranks of
// a plan change alike, so collectives keep one order among them.

enum class CollectiveOverlap : uint8_t {
  // Each collective is waited for where it stands: DTensor, and so torchtitan by default.
  kNone,
  // Waits stand before first uses. Weight gradients are computed while the input gradient is summed. The input that
  // forward gathered is not kept, but gathered again while the input gradient is computed. So does Megatron-LM with
  // sequence parallel, always.
  kBackward,
  // That, and products go in as many pieces as there are ranks, where they read what was gathered or make what is
  // scattered. The collective of a piece runs beside the product of another. So do Megatron-LM with --tp-comm-overlap
  // (TransformerEngine's userbuffers) and PyTorch's asynchronous tensor parallel. The graph has notes "pieces" alone;
  // what they mean in seconds says docs/time.md.
  kPieces,
};
constexpr auto enum_names(CollectiveOverlap) {
  return names_of<CollectiveOverlap>({{CollectiveOverlap::kNone, "none"},
                                      {CollectiveOverlap::kBackward, "backward"},
                                      {CollectiveOverlap::kPieces, "pieces"}});
}

struct OverlapResult {
  int64_t sums_hidden = 0;     // collectives of input gradients with weight gradients behind them
  int64_t gathered_again = 0;  // inputs
  int64_t in_pieces = 0;       // collectives
};
// Linear in the graph, but for what is moved. A collective that nothing can hide stays as it is.
OverlapResult overlap_collectives(Graph& rank, CollectiveOverlap overlap);

// A captured step and a plan, written as the program that one device of the mesh runs.
//
//     const ShardedGraph mine = apply(step.graph, plan, /*rank=*/3);
//     profile(mine.graph);                        // or draw it, write it as C++ or Python, replay it on a real group
//
// The graph is an ordinary one: local sizes, `_c10d_functional` operators for collectives, offsets of the rank as
// numbers. Groups are called like the axes of the mesh, and described as captures describe them
// (shadowgraph/capture/process_group.h). All ranks have the same nodes in the same order. Every operator is called
// again on fake tensors of local sizes, so strides, storages and views are what the operators make of them.
//
// The order of nodes stays, with phases, regions, forward links, source lines, flags, notes and where storages die. So
// do the tensors that autograd keeps (the local ones).
//
// The way from one layout to another comes in, before the first node that needs it. It has that node's phase, region
// and source, and a note "redistribution" that says from where to where. A copy serves all users of its phase, as
// shadowgraph/shard/apply.h says. It dies after the last use of it or of its views; what is made on the way to it
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

// Throws UnsupportedError; Error if the mesh has no such rank or the graph has a process group called like one of its
// axes. Linear, about what shape propagation costs.
ShardedGraph apply(const Graph& graph, const ShardingPlan& plan, int64_t rank, const ApplyOptions& options = {});

}  // namespace shadowgraph
