// Sums up what lies in the module clusters of a picture, and in its boxes once they are made. Labels, colours and the
// choice of a depth go by these sums.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/profile/flops.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

// What the operators of a cluster and of all clusters below it come to.
struct ClusterContents {
  int64_t operators = 0;
  int64_t flops = 0;
  int64_t bytes = 0;                   // allocated
  uint32_t visible = 0;                // drawn nodes that no fold hides
  uint32_t first = DrawnGraph::kNone;  // the first of those
};
std::vector<ClusterContents> contents_of(const Graph& graph, const DrawnGraph& drawn, const Flops& flops);

// Says whether each cluster lies in a copy that is not drawn.
std::vector<uint8_t> hidden_clusters(const DrawnGraph& drawn);

// Returns by depth how many boxes there are with `depth` levels of modules open.
std::vector<size_t> boxes_by_depth(const DrawnGraph& drawn, const std::vector<ClusterContents>& contents,
                                   const std::vector<uint8_t>& hidden);

// Returns the number of boxes on the longest way down.
size_t rows_of(const ViewModel& view);

// The nodes of every box, by copy. A box that stands for equal layers has a list for each of them, the drawn one first.
// All nodes count, those of folds inside a box, too.
using BoxNodes = std::vector<std::vector<std::vector<NodeId>>>;
// `levels` is the depth of the cluster that is the box, or that its operators lie in.
BoxNodes nodes_of_boxes(const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                        const std::vector<uint32_t>& levels);

}  // namespace shadowgraph
