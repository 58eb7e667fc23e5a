// Edits of many nodes or storages at once. Internal to the library.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Copies an argument's data in the pools of its graph: strings, lists of integers, complex numbers. `element` is
// applied to each element of a list. Values and tensor constants are returned unchanged.
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

// The last node that reads, writes or allocates each storage, by storage; invalid if there is none. Linear.
std::vector<NodeId> last_uses(const Graph& graph);

// Sets the node after which each storage is freed, by storage; an invalid node: never freed. Linear, except for a sort.
void set_free_points(Graph& graph, const std::vector<NodeId>& free_points);

// Frees the storages after the last node that reads, writes or allocates them. Linear.
void free_storages_after_last_use(Graph& graph, const std::set<StorageId>& storages);

// Frees the storages after the given nodes.
void free_storages_after(Graph& graph, const std::map<StorageId, NodeId>& free_points);

// Records which values and nodes replace others, and updates references that are not uses: guards, arguments of
// composite regions and forward links.
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

// Erases the nodes marked (by index; nodes beyond the end stay), even if they use one another. A remaining node that
// saves a result of an erased one saves its own argument or result instead, or nothing. Returns the number of erased
// nodes. Linear.
uint32_t erase_nodes(Graph& graph, const std::vector<bool>& to_erase);

}  // namespace shadowgraph
