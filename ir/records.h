// Mutable access to a graph's records, for code that builds graphs, or changes them in ways that Graph's edits do not
// offer, and that maintains the invariants (ir/analysis/verifier.cpp) itself. Internal: users change a graph through
// its edits only, so a graph that verifies keeps verifying.
#pragma once

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Calls f(ValueId) for the values of the argument or flat result that a saved tensor refers to.
template <class F>
void for_each_value_of_role(const Graph& graph, NodeId id, const SavedTensor& saved, F&& f) {
  if (saved.role == SavedRole::kArgument && saved.index < graph.arguments(id).size()) {
    graph.for_each_value(graph.arguments(id).subspan(saved.index, 1), f);
  } else if (saved.role == SavedRole::kResult) {
    uint32_t flat = 0;
    graph.for_each_output(id, [&](ValueId v) {
      if (flat++ == saved.index) f(v);
    });
  }
}

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
