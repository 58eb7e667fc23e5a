// Small constants as C++ text.
#pragma once

#include <string>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// The function that makes it, bit for bit, anew at each call. Throws CodegenError if its contents are not readable.
std::string embedded_constant(const Graph& graph, ConstantId id);

}  // namespace shadowgraph
