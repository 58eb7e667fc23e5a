// Writes what stands in the box of one operator, and in its tooltip.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/profile/flops.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

constexpr size_t kLongestLine = 40;  // characters of a label's line

// Cuts a text to at most so many bytes; one that is cut ends with "...".
std::string shortened(std::string text, size_t longest = kLongestLine);

// What a placeholder is a part of: "S(0) of [4096,4096]"; empty where it is the whole.
std::string layout_label(const Graph& graph, NodeId placeholder);

// Adds the parameters, buffers and constants that the node reads, directly or through views: "weight f32[64,3,7,7]",
// "weight, bias f32[64]", "weight f32[16,64], S(0) of [64,64]". Those of one type and layout share a line.
void add_parameters(const Graph& graph, const DrawnGraph& drawn, NodeId id, std::vector<std::string>& lines);

std::string box_tooltip(const Graph& graph, const Flops& flops_of, NodeId id);

}  // namespace shadowgraph
