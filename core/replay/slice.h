// Finds the part of a graph that some values need: what computes them, and what writes what they contain.
//
//     std::vector<NodeId> nodes = slice_for(graph, Effects::of(graph), {weight});
//
// A chosen value stands for its tensor at the end of the program: every write to its storage belongs to the slice. So
// does every write, through whatever alias, that comes before a node of the slice reads the storage. Random nodes write
// their generator. So those that draw before a random node of the slice belong to it, and the numbers are the same as
// in the whole run. Program order is kept. sg::output and sg::gradient are never part of a slice.
#pragma once

#include <span>
#include <vector>

#include "shadowgraph/analysis/effects.h"

namespace shadowgraph {

// Returns nodes in program order; linear in the graph. Throws Error for a value that is not alive in the graph.
std::vector<NodeId> slice_for(const Graph& graph, const Effects& effects, std::span<const ValueId> values);

}  // namespace shadowgraph
