// Fills the boxes of a view model by values of their nodes.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "viz/drawn_graph.h"

namespace shadowgraph {

// "7.44 GFLOPs", "320 FLOPs"
std::string flops_text(int64_t flops);

// Call this before clusters are tidied: `view.clusters` must correspond to `drawn`. A box for repeated layers shows
// their minimum, mean and maximum.
void color_boxes(const DrawnGraph& drawn, const BoxNodes& nodes_of, const NodeColors& colors, ViewModel& view);

// Assigns kinds with colors to nodes by name. When colors run out, the last kind covers all others.
class KindNumbers {
 public:
  explicit KindNumbers(NodeColors& colors) : colors_(colors) {}
  void set(NodeId node, const std::string& name) { colors_.kinds[node] = add(name); }
  uint32_t add(const std::string& name);

 private:
  NodeColors& colors_;
  std::map<std::string, uint32_t> numbers_;
};

// Assigns kinds to some nodes by name; the most frequent kinds get distinct colors.
NodeColors colors_by_kind(std::string title, const std::vector<std::pair<NodeId, std::string>>& kind_of);

}  // namespace shadowgraph
