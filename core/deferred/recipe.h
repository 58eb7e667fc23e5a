// Keeps contents of storages at places in the program, so that what is read later need not begin at the beginning.
//
//     for (int i = 0; i < 100'000; ++i) {
//       total.add_(x[i]);
//       if (total.max().item<float>() > 1) break;   // runs what came since the last read
//     }
//
// A storage with a long history gets a snapshot every `spacing` writes, wherever it is computed, and one where it was
// computed last. All snapshots of a record take no more than kMostBytes. Beyond that, those of the storage that has
// most are thinned to every second one. So a read costs `spacing` writes at most, and large storages have few snapshots
// or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

class Snapshots {
 public:
  static constexpr int64_t kMostBytes = int64_t{64} << 20;
  static constexpr uint32_t kSpacing = 64;
  // A storage must have seen so many writes before a run leaves a snapshot at its end.
  static constexpr uint32_t kLongHistory = 16;

  struct Snapshot {
    uint32_t position = 0;  // as the node with this id finds it
    at::Tensor bytes;       // all of the storage; undefined: there is none
  };
  // Returns the latest snapshot that is not later than `before`.
  Snapshot latest(StorageId storage, uint32_t before) const;
  uint32_t spacing(StorageId storage) const;
  // Copies `contents`. A copy that does not stay goes when the next such copy of the storage comes.
  void keep(StorageId storage, uint32_t position, const c10::Storage& contents, bool stays);
  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    at::Tensor bytes;
    bool stays = false;
  };
  struct History {
    std::map<uint32_t, Entry> entries;
    uint32_t spacing = kSpacing;
    uint32_t passing = 0;  // the position of the one that does not stay; 0: none
    int64_t bytes = 0;
  };
  void drop(History& history, std::map<uint32_t, Entry>::iterator entry);
  void thin(History& history);

  std::unordered_map<StorageId, History> histories_;
  int64_t bytes_ = 0;
};

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
// (core/deferred/recipe.h), nothing before that is run for it, and earlier tensors on it are views of the snapshot.

// Says whether the value is all of its storage.
bool is_whole(const Graph& graph, ValueId value);
// Returns the value that the storage was born as.
ValueId first_value(const Graph& graph, StorageId storage);

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

// Makes the steps of a Recipe::Group a graph of their own, for the interpreter. Running a few nodes of a large record
// then costs what those few cost. What was left out is gone:
//
//   - an identity is its operand's value;
//   - an allocation is aten::empty_strided;
//   - what a snapshot holds is an sg::constant, with an sg::alias for every tensor on it. The interpreter copies the
//     constant if it is written.

class Piece {
 public:
  Piece(const Graph& record, const Recipe& recipe, const Recipe::Group& group);
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  const Graph& graph() const { return graph_; }
  // Returns the nodes in the order to run them.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  // Returns what a value of the record is here; invalid if it is not.
  ValueId value(ValueId of_record) const { return copier_.value(of_record); }
  // Returns the node here that a step became; invalid for an identity, and for what a snapshot holds.
  NodeId node(NodeId of_record) const;
  // Returns the node of the record that a node here stands for.
  NodeId of_record(NodeId here) const { return made_from_[here.index].node; }
  // Says whether it is that very node, rather than an allocation or a part of a snapshot in its place.
  bool is_copy(NodeId here) const { return made_from_[here.index].copied; }

 private:
  struct MadeFrom {
    NodeId node;
    bool copied = false;
  };
  void copy(NodeId node);
  void allocate(NodeId node);
  void take_from_snapshot(NodeId node, const Recipe::Group& group);
  void note(NodeId here, NodeId of_record, bool copied);

  const Graph& record_;
  Graph graph_;
  NodeCopier copier_;
  std::vector<NodeId> nodes_;
  std::vector<MadeFrom> made_from_;                       // by node here
  std::unordered_map<NodeId, NodeId> allocations_;        // by node of the record
  std::unordered_map<StorageId, ValueId> snapshot_here_;  // by storage of the record: all its bytes
};

}  // namespace shadowgraph
