// Holds the C++ that stands before every generated kernel. Internal to kernels/compiler.
#pragma once

#include <string_view>

namespace shadowgraph {

// These functions have no branches and no calls, so that the compiler makes vectors of loops that call them.
// docs/kernels.md lists their errors against the exact value, in units in the last place.
std::string_view vector_math_source();

}  // namespace shadowgraph
