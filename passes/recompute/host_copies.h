// What a checkpoint did to the lives of storages, and how they end by that. Internal to passes/recompute.
#pragma once

#include <cstdint>

#include "passes/recompute/checkpoint_plan.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

struct StorageChanges {
  IdMap<NodeId, uint8_t> copies;      // nodes of backward that make or fetch again
  IdMap<StorageId, uint8_t> touched;  // originals that are read less than before
  IdMap<StorageId, uint8_t> made;     // states of generators, and what lies on the host
};

// Originals die at their last use in forward, what copies read lives until they have read it, copies die at their last
// use. Other storages die where they did. Linear.
void end_lives(Graph& graph, const StorageChanges& changes);

// Tensors that wait for backward on the host. Internal to passes/recompute.

// Copies a storage to the host after its last use in forward, and back before its first use in backward or where the
// trip says. Backward then reads the copy, nodes that run again among it. Leaves it alone if nobody in backward reads it.
void send_to_host(Graph& graph, const HostTrip& trip, StorageChanges& changes, CheckpointResult& result);

}  // namespace shadowgraph
