// Backward gathers an input again that forward gathered, so that each rank keeps its part alone. Internal to
// sharding/overlap.
#pragma once

#include <span>

#include "shadowgraph/graph.h"
#include "sharding/overlap/linear_products.h"

namespace shadowgraph {

// For the weight gradients of each sum: collective and wait stand before the first of them and of the products that are
// summed. Gives how many inputs are gathered again.
int64_t gather_again(Graph& graph, std::span<const InputGradientSum> sums);

}  // namespace shadowgraph
