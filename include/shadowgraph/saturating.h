// Sums and products that stop at the largest int64 where they would overflow: absurd shapes from a file must not be
// undefined behaviour.
#pragma once

#include <cstdint>
#include <limits>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

inline int64_t saturating_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

}  // namespace shadowgraph
