// The fills of a view model's boxes, from values of the nodes in them.
#pragma once

#include <vector>

#include "shadowgraph/draw.h"

namespace shadowgraph {

// `nodes_of` has, for each box, the nodes in it that are drawn.
void color_boxes(ViewModel& view, const std::vector<std::vector<NodeId>>& nodes_of, const NodeColors& colors);

}  // namespace shadowgraph
