// Why no kernel is made of an operator that has no row. Internal to kernels/, and for the operator card.
#pragma once

#include <string_view>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// The reason of an operator that could have a row.
inline constexpr std::string_view kNoRow = "nobody has written its row";

// Returns a clause, as "it is a matrix product, which libtorch's BLAS does better than a loop".
std::string_view why_no_kernel(const Target& target);

}  // namespace shadowgraph
