// Finds what must run so that some storages hold what the described program left in them.
//
// The graph is append-only here, so a node's id is its place in the program (but for placeholders, which compute
// nothing). For every storage the nodes that write it are kept in order. The walk goes back from a reader to the last
// node that overwrites the whole storage. That gives what the reader needs, at a cost of what is found:
//
//     %0 = aten::empty([4])         allocated, its contents are not needed
//     %1 = aten::uniform_(%0)       left out: the next node overwrites all of it
//     %2 = aten::normal_(%1)
//     %3 = aten::add_(%2, 1)
//
// A view reads nothing of its storage, but the storage must be large enough: nodes that have made it larger run, too.
//
// An operator may be left out although its result is used (normal_ above takes %1). It then stands for the tensor that
// it was given first, %0. A factory whose contents nobody reads becomes an empty tensor. Where a storage has a snapshot
// (core/deferred/snapshots.h), nothing before that is run for it, and earlier tensors on it are views of the snapshot.
#pragma once

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/deferred/snapshots.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class Recipe {
 public:
  explicit Recipe(const Graph& graph) : graph_(graph) {}

  // Call this when `node` has just been appended.
  void add(NodeId node);

  enum class Role : uint8_t {
    kRun,
    kIdentity,  // left out: its result is origin_of(result)
    kAllocate,  // its result is an empty tensor
    kSnapshot   // its results are views of the snapshots of their storages
  };
  struct Step {
    NodeId node;
    Role role = Role::kRun;
  };
  // A group of storages that can only be computed together, and what computes them, in program order.
  struct Group {
    std::vector<Step> steps;
    std::vector<StorageId> wanted;
    std::unordered_map<StorageId, Snapshots::Snapshot> snapshots;  // of those that begin there
  };
  // Returns groups for the storages as they are now; each storage is named once. Groups come in program order. The cost
  // is linear in what is returned, but for a logarithm. Without `snapshots` everything begins at the beginning.
  std::vector<Group> groups_for(std::span<const StorageId> wanted, const Snapshots* snapshots = nullptr);
  // Returns, as one group, what `node` needs in order to run.
  Group group_for_node(NodeId node, const Snapshots* snapshots = nullptr);
  // Returns the first value that is the same tensor as `value`, by in-place operators that keep the geometry.
  ValueId origin_of(ValueId value) const {
    return value.index < origins_.size() && origins_[value.index].valid() ? origins_[value.index] : value;
  }
  // Calls f(ValueId) for the values through which `node` writes.
  template <class F>
  void for_each_written(NodeId node, F&& f) {
    const OperatorFacts& facts = graph_.facts(node);
    const auto arguments = graph_.arguments(node);
    if (facts.unknown) {
      graph_.for_each_value(arguments, f);
    } else if (!facts.written.empty() && writes_now(graph_, node, facts)) {
      for (const uint16_t position : facts.written) {
        if (position < arguments.size()) graph_.for_each_value(arguments.subspan(position, 1), f);
      }
    }
  }

 private:
  struct Writer {
    NodeId node;
    bool overwrites = false;  // all of the storage, reading nothing of it
  };
  class Walk;
  bool overwrites(NodeId node, StorageId storage) const;
  void note_growth(NodeId node);
  void note_origin(NodeId node);
  struct Reached {
    std::vector<Step> steps;
    std::unordered_map<StorageId, Snapshots::Snapshot> snapshots;
  };
  class Grouping;
  Reached reach(std::span<const StorageId> wanted, NodeId node, const Snapshots* snapshots);

  const Graph& graph_;
  std::vector<std::vector<Writer>> writers_;                    // by storage
  std::vector<int64_t> bytes_;                                  // of each storage, as last seen
  std::unordered_map<StorageId, std::vector<NodeId>> growers_;  // what made a storage larger (resize_, out=), in order
  std::unordered_map<NodeId, NodeId> checks_;                   // of results that nothing else may read
  std::vector<ValueId> origins_;                                // by value, see origin_of
  // Views of these may be conjugated or negated lazily, which values do not say; so they have no snapshots.
  std::unordered_set<StorageId> lazily_changed_;
};

}  // namespace shadowgraph
