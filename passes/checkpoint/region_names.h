// Regions as the pass `checkpoint` names them. Internal to passes/checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// "layers.12" is number 12 of "layers", "encoder_layer_3" number 3 of "encoder_layer". "": it has no number.
std::string_view family_of(std::string_view path);

std::string name_of_region(const Graph& graph, RegionId region);

// Returns the regions that may be named, in the order in which the program entered them. These are modules, scopes and
// checkpoints with forward nodes inside, outside of what is computed again.
std::vector<RegionId> nameable_regions(const Graph& graph);

// regions_named() of patterns of which one matches. Throws Error, with names that there are.
std::vector<RegionId> regions_that_match(const Graph& graph, const std::string& patterns);

}  // namespace shadowgraph
