#include "sharding/plan/named_nodes.h"

#include <charconv>
#include <fnmatch.h>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name) {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph.nodes()) {
    if (!graph.is_placeholder(node)) break;
    if (fnmatch(name.c_str(), placeholder_name(graph, node).c_str(), 0) == 0) nodes.push_back(node);
  }
  if (!nodes.empty() || !name.starts_with('n')) return nodes;
  uint32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 1, end, number);
  if (error != std::errc() || stop != end) return nodes;
  const Numbering numbering = Numbering::of(graph);
  if (number < numbering.nodes().size()) nodes.push_back(numbering.nodes()[number]);
  return nodes;
}

}  // namespace shadowgraph
