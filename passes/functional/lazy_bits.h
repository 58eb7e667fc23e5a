// Lazy conjugates and negatives: tensors whose elements differ from the stored ones by a flag.
#pragma once

#include <cstdint>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

inline constexpr uint8_t kConjugateBit = 1;
inline constexpr uint8_t kNegativeBit = 2;

// Returns the lazy bits by value; 0 for nearly all. Linear.
IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph);

// Returns whether an operator computes the same bits for each element regardless of its operands' memory layout.
//
// Pointwise kernels use vectorized code for contiguous rows and scalar code for remainders or strided rows. The two
// agree if the result is rounded once (add, mul, sqrt, relu, comparisons). Otherwise they may differ in the last bit:
// sigmoid's exp comes from another library, and complex products use FMA in only one of them.
//
// True for calls of operators with the tag `pointwise`, including in-place and `out=` forms. Never for integers.
bool is_layout_independent(const Graph& graph, NodeId node);

}  // namespace shadowgraph
