// The fills of a view model's boxes, from values of the nodes in them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/draw.h"

namespace shadowgraph {

// `nodes_of` has, for each box, the nodes in it that are drawn.
void color_boxes(ViewModel& view, const std::vector<std::vector<NodeId>>& nodes_of, const NodeColors& colors);

// A kind for each of some nodes, by name; the kinds that most nodes have get the colours there are.
NodeColors colors_by_kind(std::string title, const std::vector<std::pair<NodeId, std::string>>& kind_of);

}  // namespace shadowgraph
