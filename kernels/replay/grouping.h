// Decides which nodes become one kernel, and in which order the graph then runs. Internal to kernels/replay.
#pragma once

#include <vector>

#include "shadowgraph/kernels/groups.h"

namespace shadowgraph {

struct Grouping {
  std::vector<NodeId> order;                // all nodes
  std::vector<std::vector<NodeId>> groups;  // one after another in `order`, each in program order
};

Grouping find_kernel_groups(const Graph& graph, const GroupKernelsOptions& options);

}  // namespace shadowgraph
