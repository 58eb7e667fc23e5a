// What the borders of boxes say, and what stands in grey at the rim of a part.
#pragma once

#include <vector>

#include "viz/drawn_graph.h"
#include "viz/merged_graph.h"
#include "viz/view_contents.h"

namespace shadowgraph {

// Of boxes with nodes that are asked for, and with `merged`, that differ; edges of what was removed, too.
void mark_boxes(const BoxNodes& nodes, const IdMap<NodeId, uint8_t>& named, const MergedGraph* merged, ViewModel& view);

// What is next to a part of a graph, in grey: one box for each side of a box, with its edge.
void add_omitted(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                 ViewModel& view);

}  // namespace shadowgraph
