// Finds nodes by the names that people give them in pins and questions.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Returns the placeholders whose name matches ("*" and "?" as in file names), or else the one node "n329" of the
// graph's text. They come in program order; there may be none.
std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name);

}  // namespace shadowgraph
