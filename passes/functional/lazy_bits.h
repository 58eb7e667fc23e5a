// Which values are lazy conjugates or negatives: tensors that read, and write, something else than what is stored.
#pragma once

#include <cstdint>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

inline constexpr uint8_t kConjugateBit = 1;
inline constexpr uint8_t kNegativeBit = 2;

// By value; 0 for nearly all. Linear.
IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph);

// Whether an operator leaves the same bits in each element however its operands lie in memory.
//
// Pointwise kernels compute a row of memory in vectors and what is left of it, or a row with gaps, one element at a
// time. The two agree where the result is rounded once (add, mul, sqrt, relu, comparisons). Elsewhere they may differ
// in the last bit: sigmoid's exp comes from another library, complex products are fused in one of them.
//
// Says so for calls of operators with the tag `pointwise`, in-place and `out=` forms included. Integers never differ.
bool is_layout_independent(const Graph& graph, NodeId node);

}  // namespace shadowgraph
