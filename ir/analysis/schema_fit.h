// Whether arguments and results are of the kinds that a schema has. Internal to ir/analysis.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Generous where libtorch converts: a number stands for a tensor, a value for a number of its kind.
bool fits_schema(const Graph& graph, const Argument& a, const FormalType& type);
// A result that is not there is None: kernels may leave out what a flag switches off.
bool result_fits_schema(const Graph& graph, const Argument& a, TypeClass type);

}  // namespace shadowgraph
