// Plans one node as one program, or as several if its results reduce different dimensions (gradients of layer norm).
#pragma once

#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

// Throws UnsupportedError for a node that cannot be compiled.
std::vector<LoweredKernel> lower_parts(const Graph& graph, NodeId node, const KernelOptions& options);

}  // namespace shadowgraph
