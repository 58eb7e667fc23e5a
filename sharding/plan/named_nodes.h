// Nodes as people name them in pins and questions.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Placeholders whose name matches ("*" and "?" as in file names), or else the one node "n329" of the graph's text. In
// program order; empty if there is none.
std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name);

}  // namespace shadowgraph
