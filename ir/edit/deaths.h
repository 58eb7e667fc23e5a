// When storages die, after an edit has changed who reads them.
#pragma once

#include <map>
#include <set>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// They die after the last node that reads, writes or makes what is in them. Linear.
void die_at_last_use(Graph& graph, const std::set<StorageId>& storages);

// They die after these nodes.
void die_at(Graph& graph, const std::map<StorageId, NodeId>& deaths);

}  // namespace shadowgraph
