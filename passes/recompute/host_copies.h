// Offload of storages to CPU, and update of storage lifetimes after recompute or offload. Internal to passes/recompute.
#pragma once

#include <cstdint>

#include "passes/recompute/recompute_schedule.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

struct StorageChanges {
  IdMap<NodeId, uint8_t> copies;      // backward nodes that recompute or copy back
  IdMap<StorageId, uint8_t> touched;  // originals with fewer readers than before
  IdMap<StorageId, uint8_t> made;     // generator states and CPU copies
};

// Frees originals after their last use in forward, operands of recomputed nodes after those, and copies after their
// last use. Other storages keep the point where they are freed. Linear.
void update_lifetimes(Graph& graph, const StorageChanges& changes);

// Copies a storage to CPU after its last use in forward, and back before its first use in backward or where `points`
// specifies. Backward nodes, including recomputed ones, then read the copy. Does nothing if backward does not read it.
void offload_to_cpu(Graph& graph, const OffloadPoints& points, StorageChanges& changes, CheckpointResult& result);

}  // namespace shadowgraph
