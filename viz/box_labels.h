// What stands in the box of one operator, and in its tooltip.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/profile/flops.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

constexpr size_t kLongestLine = 40;  // characters of a label's line

// At most so many bytes; what is cut ends with "...".
std::string shortened(std::string text, size_t longest = kLongestLine);

// "weight f32[64,3,7,7]", "weight, bias f32[64]": the parameters, buffers and constants that the node reads, directly
// or through views, those of one type on one line.
void add_parameters(const Graph& graph, const DrawnGraph& drawn, NodeId id, std::vector<std::string>& lines);

std::string box_tooltip(const Graph& graph, const Flops& flops_of, NodeId id);

}  // namespace shadowgraph
