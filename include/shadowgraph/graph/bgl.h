// A graph for the Boost Graph Library. Requires the headers of Boost.Graph.
//
// Makes Boost's algorithms available to users: dominators, components, cuts, orders. shadowgraph itself does not use
// it. For orders that respect side effects, see shadowgraph/graph/analysis.h.
#pragma once

#include <boost/graph/adjacency_list.hpp>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// The def-use graph: nodes are vertices, with one edge from the producer of a value to each argument that reads it.
//
//     const DefUseGraph def_use = def_use_graph(graph);
//     std::vector<size_t> order;
//     boost::topological_sort(def_use, std::back_inserter(order));   // in reverse order, as always with BGL
//     const NodeId first = def_use[order.back()];
//
// Vertices are in program order, without gaps for erased nodes; a vertex's property is its node, an edge's the value.
// There are parallel edges if a node reads a value twice. Edges represent values only, not writes.
using DefUseGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, NodeId, ValueId>;

// A copy, linear in the graph, which later edits of the graph do not change.
inline DefUseGraph def_use_graph(const Graph& graph) {
  DefUseGraph result;
  IdMap<NodeId, size_t> vertices;
  for (const NodeId n : graph.nodes()) vertices[n] = add_vertex(n, result);
  for (const NodeId n : graph.nodes()) {
    graph.for_each_value(graph.arguments(n),
                         [&](ValueId v) { add_edge(vertices[graph.value(v).producer], vertices[n], v, result); });
  }
  return result;
}

}  // namespace shadowgraph
