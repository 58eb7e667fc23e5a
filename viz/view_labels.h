// Writes what stands in the box of one operator, and in its tooltip.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/profile/operator_costs.h"
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

// Makes the edges of a picture, once it is known which box every node is in.

struct ViewEdges {
  std::vector<ViewEdge> edges;
  int64_t from_hidden = 0;  // tensors from phases that are not shown
};

// Does what ViewOptions::edge_note does.
using EdgeNote = std::function<std::string(NodeId user, ValueId value)>;

// `box_of_node` is DrawnGraph::kNone for a node without a box. With `merged`, edges also show what was read before.
ViewEdges edges_of(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                   const MergedGraph* merged, const EdgeNote& note);

// Sets the borders of boxes, and what stands in grey at the rim of a part.

// Marks boxes with nodes that are asked for and, with `merged`, those that differ; edges of what was removed, too.
void mark_boxes(const BoxNodes& nodes, const IdMap<NodeId, uint8_t>& named, const MergedGraph* merged, ViewModel& view);

// Adds in grey what is next to a part of a graph: one box for each side of a box, with its edge.
void add_omitted(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                 ViewModel& view);

}  // namespace shadowgraph
