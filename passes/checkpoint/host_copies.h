// Tensors that wait for backward on the host. Internal to passes/checkpoint.
#pragma once

#include "passes/checkpoint/checkpoint_plan.h"
#include "passes/checkpoint/storage_lives.h"
#include "shadowgraph/passes/checkpoint.h"

namespace shadowgraph {

// Copies a storage to the host after its last use in forward, and back before its first use in backward or where the
// trip says. Backward then reads the copy, nodes that run again among it. Leaves it alone if nobody in backward reads it.
void send_to_host(Graph& graph, const HostTrip& trip, StorageChanges& changes, CheckpointResult& result);

}  // namespace shadowgraph
