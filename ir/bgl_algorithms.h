// Boost.Graph's algorithms on graphs of the IR, with IdMaps in and out. The algorithms are Boost's; here is what calls them.
//
//     IdMap<NodeId, NodeId> dominators = immediate_dominators(graph);     // every way to n leads over dominators[n]
//     MinCut cut = min_cut(vertices, edges, source, sink);                // which side each vertex is on
//
// DefUseGraph (ir/bgl.h) models the concepts directly, so anything else in Boost.Graph can be called on it. Linear, or
// nearly, but for the transitive reduction (vertices times edges) and max-flow (fast in practice, cubic at worst). Safe on
// millions of nodes: Boost's searches keep their own stack, and where one recurses (dominators) it gets a large one.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/topology.h"

namespace shadowgraph {

// The node over which every way from the placeholders to a node leads last; invalid for nodes that no single node
// dominates (placeholders, what depends on two of them). Ways follow values. (boost::lengauer_tarjan_dominator_tree)
IdMap<NodeId, NodeId> immediate_dominators(const Graph& graph);
// The same from the end: the first node over which every way from a node to the nodes without users leads.
IdMap<NodeId, NodeId> immediate_post_dominators(const Graph& graph);

// By node, the number of the weakly connected component it is in, and how many there are. Numbered in program order.
// (boost::disjoint_sets)
struct Components {
  IdMap<NodeId, uint32_t> of;
  uint32_t count = 0;
};
Components components(const Graph& graph);

// The dependences that others do not imply: (user, used), in program order of the users. (boost::transitive_reduction)
std::vector<std::pair<NodeId, NodeId>> reduced_dependences(const Graph& graph, const Dependences& dependences);

// ---- Cuts. Over plain numbers, since what costs what is the caller's: remat and offload planners cut values, not nodes.

struct FlowEdge {
  uint32_t from = 0;
  uint32_t to = 0;
  int64_t capacity = 0;  // not negative; kUncuttable: never cut
};
constexpr int64_t kUncuttable = int64_t{1} << 60;

struct MinCut {
  int64_t capacity = 0;              // of the edges cut; kUncuttable or more: there is no cut
  std::vector<char> on_source_side;  // by vertex
};
// Throws Error if a vertex is out of range or a capacity negative. (boost::boykov_kolmogorov_max_flow)
MinCut min_cut(uint32_t vertices, std::span<const FlowEdge> edges, uint32_t source, uint32_t sink);

}  // namespace shadowgraph
