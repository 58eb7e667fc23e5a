// Fills a view model's boxes by values of the nodes in them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "viz/drawn_graph.h"

namespace shadowgraph {

// Call this before clusters are tidied: `view.clusters` are those of `drawn`. A box that stands for equal layers says
// the least, the mean and the most of them.
void color_boxes(const DrawnGraph& drawn, const BoxNodes& nodes_of, const NodeColors& colors, ViewModel& view);

// Gives nodes kinds by name, each with a colour. When colours run out, one last kind has all others.
class KindNumbers {
 public:
  explicit KindNumbers(NodeColors& colors) : colors_(colors) {}
  void set(NodeId node, const std::string& name) { colors_.kinds[node] = add(name); }
  uint32_t add(const std::string& name);

 private:
  NodeColors& colors_;
  std::map<std::string, uint32_t> numbers_;
};

// Gives some nodes a kind by name; the kinds that most nodes have get the colours there are.
NodeColors colors_by_kind(std::string title, const std::vector<std::pair<NodeId, std::string>>& kind_of);

}  // namespace shadowgraph
