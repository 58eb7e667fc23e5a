// The records of a graph, to be written. They are for code that builds graphs anew, or changes them in ways that
// Graph's edits do not offer, and keeps the invariants (ir/analysis/verifier.cpp) itself. Internal: outside the library
// a graph changes by its edits alone, so that one that verifies goes on doing so.
#pragma once

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class GraphRecords {
 public:
  static Node& of(Graph& graph, NodeId id) { return graph.nodes_[id.index]; }
  static Value& of(Graph& graph, ValueId id) { return graph.values_[id.index]; }
  static Storage& of(Graph& graph, StorageId id) { return graph.storages_[id.index]; }
  static Region& of(Graph& graph, RegionId id) { return graph.regions_[id.index]; }
};

inline Node& mutable_node(Graph& graph, NodeId id) { return GraphRecords::of(graph, id); }
inline Value& mutable_value(Graph& graph, ValueId id) { return GraphRecords::of(graph, id); }
inline Storage& mutable_storage(Graph& graph, StorageId id) { return GraphRecords::of(graph, id); }
inline Region& mutable_region(Graph& graph, RegionId id) { return GraphRecords::of(graph, id); }

}  // namespace shadowgraph
