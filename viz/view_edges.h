// The edges of a picture, once it is known which box every node is in.
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

// What ViewOptions::edge_note is.
using EdgeNote = std::function<std::string(NodeId user, ValueId value)>;

// `box_of_node`: DrawnGraph::kNone for what has no box. With `merged`, what was read before is among them.
ViewEdges edges_of(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                   const MergedGraph* merged, const EdgeNote& note);

}  // namespace shadowgraph
