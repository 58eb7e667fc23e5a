// Lists what a capture assumed of data: answers that nobody gave, routing that is taken to be even. Internal to profiler/.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// In the words of the graph's guards, each once: "routing0: 64 evenly over 4, assumed, read at moe.py:12".
std::vector<std::string> assumptions_of(const Graph& graph);

}  // namespace shadowgraph
