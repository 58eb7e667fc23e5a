// How many elements contents are known of. Internal to core/.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/fake/known_contents.h"

namespace shadowgraph {

// Token ids, masks and lengths decide which way a program goes; what is computed from floating-point tables (rotary
// embeddings) does not, and would be computed for real with every capture.
inline int64_t most_known_elements(c10::ScalarType dtype) {
  constexpr int64_t kMostFloatingElements = 1024;
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? kMostKnownElements : kMostFloatingElements;
}

}  // namespace shadowgraph
