// Makes the edges of a picture, once it is known which box every node is in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "viz/drawn_graph.h"
#include "viz/merged_graph.h"

namespace shadowgraph {

struct ViewEdges {
  std::vector<ViewEdge> edges;
  int64_t from_hidden = 0;  // tensors from phases that are not shown
};

// Does what ViewOptions::edge_note does.
using EdgeNote = std::function<std::string(NodeId user, ValueId value)>;

// `box_of_node` is DrawnGraph::kNone for a node without a box. With `merged`, edges also show what was read before.
ViewEdges edges_of(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                   const MergedGraph* merged, const EdgeNote& note);

}  // namespace shadowgraph
