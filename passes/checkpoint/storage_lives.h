// What a checkpoint did to the lives of storages, and how they end by that. Internal to passes/checkpoint.
#pragma once

#include <cstdint>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct StorageChanges {
  IdMap<NodeId, uint8_t> copies;      // nodes of backward that make or fetch again
  IdMap<StorageId, uint8_t> touched;  // originals that are read less than before
  IdMap<StorageId, uint8_t> made;     // states of generators, and what lies on the host
};

// Originals die at their last use in forward, what copies read lives until they have read it, copies die at their last
// use. Other storages die where they did. Linear.
void end_lives(Graph& graph, const StorageChanges& changes);

}  // namespace shadowgraph
