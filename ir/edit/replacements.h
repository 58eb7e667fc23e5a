// What edits of many nodes at once leave to be mended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// A pass' bookkeeping of which value stands for which: mends what uses do not cover. Guards, arguments of
// composite regions and forward links name values and nodes that may be gone.
class Replacements {
 public:
  void add(ValueId of, ValueId with) { values_[of] = with; }
  void add(NodeId of, NodeId with) { nodes_[of] = with; }
  // Linear in the graph; call once, at the end.
  void finish(Graph& graph) const;

 private:
  ValueId now(ValueId value) const;
  bool renamed(const Graph& graph, std::span<const Argument> arguments) const;
  std::vector<Argument> rename(Graph& graph, std::span<const Argument> arguments) const;

  IdMap<ValueId, ValueId> values_;
  IdMap<NodeId, NodeId> nodes_;
};

// Erases the nodes marked (by index; those beyond stay), users of one another included. Nodes that stay may say that
// autograd keeps a result of one that goes. They then keep their own argument or result instead, or no longer say so.
// Returns how many. Linear.
uint32_t erase_nodes(Graph& graph, const std::vector<bool>& doomed);

}  // namespace shadowgraph
