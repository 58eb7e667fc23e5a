// Sharding plans, and their application: the program of one rank, with redistributions and communication overlap.
// Created by ShardingProblem (shadowgraph/shard/problem.h).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
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

// Layouts of a node's operands and results, in the order of for_each_input and for_each_output, tensors only.
struct NodeLayouts {
  std::vector<Layout> operands;
  std::vector<Layout> results;
};

// Layouts of all tensors of a graph on a mesh. If the layouts of a result and of an operand that uses it differ, the
// tensor is redistributed before the first node that needs it. The copy is shared by all nodes of the same phase that
// need that layout, unless the tensor is written in between, and is freed after the last of them. Operands that a node
// writes, and views whose memory is written while in use, cannot be copies: they have the layout of the tensor.
struct GraphLayouts {
  DeviceMesh mesh;
  IdMap<NodeId, NodeLayouts> nodes;  // placeholders have results, sg::output has operands
};

// Nodes are identified by their numbers in the text form:
//
//     {"format": "shadowgraph-layouts", "version": 1, "mesh": [{"name": "x", "size": 8}],
//      "nodes": [{"node": 329, "name": "aten::mm", "operands": ["S(0)", "R"], "results": ["S(0)"]}]}
//
// Reading throws ParseError if the JSON is not a plan for this graph.
nlohmann::json to_json(const GraphLayouts& plan, const Graph& graph);
GraphLayouts graph_layouts_from_json(const nlohmann::json& json, const Graph& graph,
                                     const std::string& name = "sharding plan");

// A redistribution required by a plan, shared by one or more operands.
struct LayoutChange {
  ValueId value;
  PhaseId phase;
  Layout from, to;
  NodeId before;  // the first node that uses it
  Redistribution path;
};
// Returns redistributions in program order of their first users. Throws Error if the plan requires an impossible one.
std::vector<LayoutChange> layout_changes(const Graph& graph, const GraphLayouts& plan,
                                         const RedistributionPlanner& planner);

// Returns the phase to which a node's copies belong: its own, or the optimizer's (if any) for sg::gradient.
PhaseId phase_of_layout_changes(const Graph& graph, NodeId node);

// Overlap of tensor parallel collectives with matrix products, in the program of one rank.
//
// The input gradient of a column-parallel linear layer is summed over the ranks. The weight gradient does not depend on
// that sum, so frameworks compute it concurrently:
//
//     dW = mm(dY^T, X)                              X'  = all_gather(x)        x: local shard of X
//     dX = mm(dY, W)                   ->           dX  = mm(dY, W)
//     dx = reduce_scatter(dX)                       dx  = reduce_scatter(dX)
//     wait(dx)                                      dW  = mm(dY^T, wait(X'))
//                                                   wait(dx)
//
// Values are unchanged, and writes keep their order (shadowgraph/graph/analysis.h). All ranks of a plan are changed in
// the same way, so the order of collectives remains consistent.

enum class CollectiveOverlap : uint8_t {
  // Wait for each collective immediately: DTensor, and thus torchtitan by default.
  kNone,
  // Wait before the first use. Weight gradients are computed during the reduction of the input gradient. Gathered
  // inputs of forward are not saved, but gathered again while the input gradient is computed. As in Megatron-LM.
  kBackward,
  // In addition, split matrix products that use a gathered tensor or compute one to be scattered in as many pieces as
  // there are ranks, and overlap the collective of a piece with the product of another: Megatron-LM with
  // --tp-comm-overlap (userbuffers of TransformerEngine), asynchronous tensor parallelism of PyTorch. In the graph,
  // only a note "pieces" is added; see docs/time.md for the time model.
  kPieces,
};
constexpr auto enum_names(CollectiveOverlap) { return names_in_order<CollectiveOverlap>("none", "backward", "pieces"); }

struct OverlapResult {
  int64_t overlapped_reductions = 0;  // reductions of input gradients overlapped with weight gradients
  int64_t regathered = 0;             // inputs gathered again
  int64_t in_pieces = 0;              // collectives overlapped in pieces
};
// Linear in the graph, except for moved nodes. Collectives that cannot be overlapped are unchanged.
OverlapResult overlap_collectives(Graph& rank, CollectiveOverlap overlap);

// Applies a sharding plan to a captured step: returns the program of one device of the mesh.
//
// The result is an ordinary graph with local sizes, `_c10d_functional` operators for collectives, and rank-specific
// offsets as constants. Process groups are named after the axes of the mesh and described as in captures
// (shadowgraph/capture/process_group.h). All ranks have the same nodes in the same order. Every operator is run on fake
// tensors of local sizes to determine strides, storages and views.
//
// Node order, phases, regions, forward links, source lines, flags, notes, free points and saved tensors are preserved.
//
// A redistribution is inserted before the first node that needs it, with that node's phase, region and source, and a
// note "redistribution" with the two layouts. It is shared by all users of its phase, see GraphLayouts, and freed after
// the last use of it or of its views; intermediate tensors are freed after their use. Their guards are dropped.
//
// A redistribution consists of these nodes, with x the local tensor:
//
//     slice            aten::slice or aten::select, then a contiguous aten::clone
//     all_gather       all_gather_into_tensor, wait_tensor; an additional clone unless pieces are contiguous
//     all_reduce       all_reduce, wait_tensor; for P(avg) a sum and aten::div (gloo has no average)
//     reduce_scatter   a clone unless pieces are contiguous, reduce_scatter_tensor, wait_tensor
//     all_to_all       both of these clones, around all_to_all_single
//
// Operands of collectives are cloned first if they are not contiguous. If a dimension changes from one shard to another
// whose pieces are not distributed equally over the old ones, the old pieces are gathered and sliced.

struct ApplyOptions {
  const ShardingRules* rules = nullptr;            // nullptr: built-in and registered rules
  const RedistributionPlanner* planner = nullptr;  // for the plan's mesh; nullptr: one for "h100" links
  // Allow random operators with sharded tensors. Each device then draws its own random numbers, which differ from those
  // of the program. Otherwise they throw UnsupportedError.
  bool shard_random = false;
};

// An input or output of a sharded program.
struct ShardedTensor {
  std::string name;  // "" for outputs
  Layout layout;
  std::vector<int64_t> sizes;  // of the whole tensor
  bool defined = true;         // false for an output that is None
};

struct ShardedGraph {
  Graph graph;
  DeviceMesh mesh;
  int64_t rank = 0;
  std::vector<ShardedTensor> inputs;  // parameters, buffers and inputs, in program order; constants are sharded already
  std::vector<ShardedTensor> outputs;    // of sg::output
  std::vector<ShardedTensor> gradients;  // of sg::gradient, by parameter name

  // Restores all other fields from the notes of a graph of apply(), in any process. Throws Error for other graphs.
  static ShardedGraph of(Graph graph);
};

// Throws UnsupportedError; Error if the mesh does not have the rank, or if the graph has a process group named as one
// of its axes. Linear; costs about as much as shape propagation.
ShardedGraph apply(const Graph& graph, const GraphLayouts& plan, int64_t rank, const ApplyOptions& options = {});

}  // namespace shadowgraph
