// One node as one program or, where results reduce different dimensions (the gradients of a layer norm), as several.
// Internal to kernels.
#pragma once

#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

// Throws KernelError for what no kernel is made of.
std::vector<KernelPlan> plan_parts(const Graph& graph, NodeId node, const KernelOptions& options);

}  // namespace shadowgraph
