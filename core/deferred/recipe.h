// What must run so that some storages hold what the described program left in them.
//
// The graph is append-only here, so a node's id is its place in the program (placeholders, which compute nothing, apart).
// For every storage the nodes that write it are kept in order; walking back from a reader to the last node that overwrites
// the whole storage gives what the reader needs, at a cost of what is found:
//
//     %0 = aten::empty([4])         allocated, its contents are not needed
//     %1 = aten::uniform_(%0)       left out: the next node overwrites all of it
//     %2 = aten::normal_(%1)
//     %3 = aten::add_(%2, 1)
//
// A view reads nothing of its storage, but the storage must be large enough: what has made it larger runs, too.
//
// An operator that was left out but whose result is used (normal_ above takes %1) gives its operand back; a factory whose
// contents nobody reads becomes an empty tensor.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "ir/operator_facts.h"

namespace shadowgraph {

class Recipe {
 public:
  explicit Recipe(const Graph& graph) : graph_(graph) {}

  // `node` has just been appended.
  void add(NodeId node);
  // Its facts, for whoever else needs them.
  const OperatorFacts& facts_of(NodeId node) { return facts_.of(graph_, graph_.node(node).target); }

  enum class Role : uint8_t {
    kRun,
    kIdentity,  // left out: its result is its first operand
    kAllocate   // its result is an empty tensor
  };
  struct Step {
    NodeId node;
    Role role = Role::kRun;
  };
  // A group of storages that can only be computed together, and what computes them, in program order.
  struct Group {
    std::vector<Step> steps;
    std::vector<StorageId> wanted;
  };
  // For the storages as they are now; each once. Groups come in program order. Linear in what is returned, but for a
  // logarithm.
  std::vector<Group> groups_for(std::span<const StorageId> wanted);
  // As one group: what `node` needs in order to run.
  Group group_for_node(NodeId node);

 private:
  struct Writer {
    NodeId node;
    bool overwrites = false;  // all of the storage, reading nothing of it
  };
  class Walk;
  bool overwrites(NodeId node, StorageId storage) const;
  void note_growth(NodeId node);

  const Graph& graph_;
  OperatorFactsCache facts_;
  std::vector<std::vector<Writer>> writers_;                    // by storage
  std::vector<int64_t> bytes_;                                  // of each storage, as last seen
  std::unordered_map<StorageId, std::vector<NodeId>> growers_;  // what made a storage larger (resize_, out=), in order
  std::unordered_map<NodeId, NodeId> checks_;                   // of results that nothing else may read
};

}  // namespace shadowgraph
