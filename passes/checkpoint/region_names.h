// Regions as the pass `checkpoint` names them. Internal to passes/checkpoint.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

std::string name_of_region(const Graph& graph, RegionId region);

// Returns the regions that may be named, in the order in which the program entered them. These are modules, scopes and
// checkpoints with forward nodes inside, outside of what is computed again.
std::vector<RegionId> nameable_regions(const Graph& graph);

}  // namespace shadowgraph
