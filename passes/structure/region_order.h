// Regions of a graph in another order, or under new parents.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Renumbers regions so that parents come before what they hold, as a graph wants it; otherwise they keep their order.
// Call it after regions were given parents that were made later. Ids of regions held elsewhere are stale. Linear.
void put_parents_first(Graph& graph);

}  // namespace shadowgraph
