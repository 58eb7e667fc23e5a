// Whether an operator leaves the same bits in each element however its operands lie in memory.
//
// Pointwise kernels compute a row of memory in vectors and what is left of it, or a row with gaps, one element at a
// time. The two agree where the result is rounded once (add, mul, sqrt, relu, comparisons). Elsewhere they may differ
// in the last bit: sigmoid's exp comes from another library, complex products are fused in one of them.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Says so for calls of operators with the tag `pointwise`, in-place and `out=` forms included. Integers never differ.
bool is_layout_independent(const Graph& graph, NodeId node);

}  // namespace shadowgraph
