// Takes a part of a graph: what lies around some nodes, or on the ways between some.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shadowgraph/draw.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

// Returns the nodes that options.around and options.path name.
IdMap<NodeId, uint8_t> named_nodes(const ViewOptions& options);

// Leaves in `drawn`, which has no clusters yet, what the options ask for, and notes what was next to it. `extra` are
// more edges, from a value to a node that reads it. Throws Error if a node that is named is not drawn, or no way leads
// from one end of the path to the other.
void keep_part(const Graph& graph, const ViewOptions& options, const std::vector<std::pair<ValueId, NodeId>>& extra,
               DrawnGraph& drawn);

}  // namespace shadowgraph
