// Does the last step of a view model: drops clusters that say nothing.
#pragma once

#include <set>
#include <vector>

#include "viz/drawn_graph.h"

namespace shadowgraph {

// Drops clusters without boxes and turns clusters of one box into a line of its label. Joins a container with its only
// module, and numbers what is left. `view.clusters` are those of `modules`; `titled` are the boxes whose first line is
// a module's name.
void tidy_clusters(const std::vector<ModuleCluster>& modules, std::set<uint32_t>& titled, ViewModel& view);

}  // namespace shadowgraph
