// The C++ that stands before every generated kernel. Internal to kernels/compiler.
#pragma once

#include <string_view>

namespace shadowgraph {

// Functions without branches or calls, so that the compiler makes vectors of loops that call them. Errors against the exact
// value, in units in the last place, by tests/kernels/vector_math_test.cpp: docs/kernels.md.
std::string_view vector_math_source();

}  // namespace shadowgraph
