// What lies in the module clusters of a picture, and in its boxes once they are made: the sums behind labels and colours,
// and behind the choice of a depth.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/profile/flops.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

// What the operators of a cluster and of all below it come to.
struct ClusterContents {
  int64_t operators = 0;
  int64_t flops = 0;
  int64_t bytes = 0;                   // allocated
  uint32_t visible = 0;                // drawn nodes that no fold hides
  uint32_t first = DrawnGraph::kNone;  // the first of those
};
std::vector<ClusterContents> contents_of(const Graph& graph, const DrawnGraph& drawn, const Flops& flops);

// Whether each cluster lies in a copy that is not drawn.
std::vector<uint8_t> hidden_clusters(const DrawnGraph& drawn);

// How many boxes there are with `depth` levels of modules open, by depth.
std::vector<size_t> boxes_by_depth(const DrawnGraph& drawn, const std::vector<ClusterContents>& contents,
                                   const std::vector<uint8_t>& hidden);

// Boxes on the longest way down.
size_t rows_of(const ViewModel& view);

// The nodes of every box, by copy: what stands for equal layers has a list for each of them, the drawn one first. All
// nodes count, those of folds inside a box, too.
using BoxNodes = std::vector<std::vector<std::vector<NodeId>>>;
// `levels`: the depth of the cluster that is the box, or that its operators lie in.
BoxNodes nodes_of_boxes(const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                        const std::vector<uint32_t>& levels);

}  // namespace shadowgraph
