// Copies arguments from one graph into another, or within one. Internal to the library.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Copies what an argument has in pools of its graph: strings, lists of integers, complex numbers. A list gets what
// `element` makes of each of its elements. Values and tensor constants come back as they are.
template <class CopyElement>
Argument copied_argument(Graph& into, const Graph& from, const Argument& argument, const CopyElement& element) {
  switch (argument.kind) {
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque: {
      Argument copy = into.string_argument(std::string(from.text_or_empty(argument.string)));
      copy.kind = argument.kind;
      return copy;
    }
    case ArgumentKind::kIntList:
      return into.int_list(from.ints(argument));
    case ArgumentKind::kComplex: {
      const auto parts = from.complex_parts(argument);
      return into.complex_argument(parts[0], parts[1]);
    }
    case ArgumentKind::kList: {
      const auto list = from.list(argument);
      std::vector<Argument> elements(list.begin(), list.end());
      for (Argument& e : elements) e = element(e);
      return into.make_list(elements);
    }
    default:
      return argument;
  }
}

// When storages die, after an edit has changed who reads them.

// The last node that reads, writes or makes what is in a storage, by storage; invalid without one. Linear.
std::vector<NodeId> last_uses(const Graph& graph);

// All storages die after these nodes, by storage; invalid: nowhere. Linear but for a sort.
void set_deaths(Graph& graph, const std::vector<NodeId>& deaths);

// They die after the last node that reads, writes or makes what is in them. Linear.
void die_at_last_use(Graph& graph, const std::set<StorageId>& storages);

// They die after these nodes.
void die_at(Graph& graph, const std::map<StorageId, NodeId>& deaths);

// What edits of many nodes at once leave to be mended.

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
