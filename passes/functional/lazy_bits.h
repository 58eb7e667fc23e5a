// Which values are lazy conjugates or negatives: tensors that read, and write, something else than what is stored.
#pragma once

#include <cstdint>

#include "shadowgraph/graph.h"

namespace shadowgraph {

inline constexpr uint8_t kConjugateBit = 1;
inline constexpr uint8_t kNegativeBit = 2;

// By value; 0 for nearly all. Linear.
IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph);

}  // namespace shadowgraph
