// Sets the borders of boxes, and what stands in grey at the rim of a part.
#pragma once

#include <vector>

#include "viz/drawn_graph.h"
#include "viz/merged_graph.h"
#include "viz/view_contents.h"

namespace shadowgraph {

// Marks boxes with nodes that are asked for and, with `merged`, those that differ; edges of what was removed, too.
void mark_boxes(const BoxNodes& nodes, const IdMap<NodeId, uint8_t>& named, const MergedGraph* merged, ViewModel& view);

// Adds in grey what is next to a part of a graph: one box for each side of a box, with its edge.
void add_omitted(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                 ViewModel& view);

}  // namespace shadowgraph
