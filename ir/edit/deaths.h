// When storages die, after an edit has changed who reads them.
#pragma once

#include <set>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// They die after the last node that reads, writes or makes what is in them. Linear.
void die_at_last_use(Graph& graph, const std::set<StorageId>& storages);

}  // namespace shadowgraph
