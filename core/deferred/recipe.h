// Keeps snapshots of storages at positions of the program, so that later reads need not replay it from the beginning.
//
//     for (int i = 0; i < 100'000; ++i) {
//       total.add_(x[i]);
//       if (total.max().item<float>() > 1) break;   // runs only what was recorded since the last read
//     }
//
// A storage with a long history gets a snapshot every `spacing` writes whenever it is computed, and one at its last
// computation. All snapshots of a record take at most kMaxBytes; beyond that, the storage with the most bytes loses
// every second snapshot. So a read costs at most `spacing` writes, and large storages have few snapshots or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/ids.h"

namespace shadowgraph {

class Snapshots {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr uint32_t kSpacing = 64;
  // Number of writes from which a run leaves a snapshot at its end.
  static constexpr uint32_t kLongHistory = 16;

  struct Snapshot {
    uint32_t position = 0;  // contents as seen by the node with this id
    at::Tensor bytes;       // all of the storage; undefined: no snapshot
  };
  // Returns the latest snapshot at or before `before`.
  Snapshot latest(StorageId storage, uint32_t before) const;
  uint32_t spacing(StorageId storage) const;
  // Copies `contents`. A copy that does not stay is replaced by the next such copy of the storage.
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
    uint32_t passing = 0;  // position of the one that does not stay; 0: none
    int64_t bytes = 0;
  };
  void drop(History& history, std::map<uint32_t, Entry>::iterator entry);
  void thin(History& history);

  std::unordered_map<StorageId, History> histories_;
  int64_t bytes_ = 0;
};

// Finds the nodes that must run to compute the current contents of storages.
//
// The graph is append-only here, so a node's id is its position in the program (except for placeholders, which compute
// nothing). For every storage the nodes that write it are kept in order. A backward walk from a reader to the last node
// that overwrites the whole storage finds what the reader needs, in time proportional to the result:
//
//     %0 = aten::empty([4])         allocated, its contents are not needed
//     %1 = aten::uniform_(%0)       skipped: the next node overwrites all of it
//     %2 = aten::normal_(%1)
//     %3 = aten::add_(%2, 1)
//
// A view does not read its storage but needs it to be large enough, so nodes that have enlarged it run too.
//
// An operator may be skipped although its result is used (normal_ above takes %1). Its result is then the tensor it was
// first given, %0. A factory whose contents are not read becomes an empty tensor. Where a storage has a snapshot,
// nothing before it runs for that storage, and earlier tensors on it are views of the snapshot.

// Returns whether the value covers its whole storage.
bool is_whole(const Graph& graph, ValueId value);
// Returns the first value on the storage.
ValueId first_value(const Graph& graph, StorageId storage);

class Recipe {
 public:
  explicit Recipe(const Graph& graph) : graph_(graph) {}

  // Must be called after `node` was appended.
  void add(NodeId node);

  enum class Role : uint8_t {
    kRun,
    kIdentity,  // skipped: its result is origin_of(result)
    kAllocate,  // its result is an empty tensor
    kSnapshot   // its results are views of the snapshots of their storages
  };
  struct Step {
    NodeId node;
    Role role = Role::kRun;
  };
  // Storages that must be computed together, and the steps that compute them in program order.
  struct Group {
    std::vector<Step> steps;
    std::vector<StorageId> wanted;
    std::unordered_map<StorageId, Snapshots::Snapshot> snapshots;  // of the storages that start from one
  };
  // Returns groups, in program order, for the current contents of the storages; each storage is in one group. Linear in
  // the result, up to a logarithm. Without `snapshots` everything is computed from the beginning.
  std::vector<Group> groups_for(std::span<const StorageId> wanted, const Snapshots* snapshots = nullptr);
  // Returns everything that `node` needs in order to run as one group.
  Group group_for_node(NodeId node, const Snapshots* snapshots = nullptr);
  // Returns the first value that is the same tensor as `value`, following in-place operators that keep the geometry.
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
    bool overwrites = false;  // all of the storage, without reading it
  };
  class Walk;
  bool overwrites(NodeId node, StorageId storage) const;
  void record_growth(NodeId node);
  void note_origin(NodeId node);
  class Grouping;
  // Returns what the storages and the node need, as one group.
  Group reach(std::span<const StorageId> wanted, NodeId node, const Snapshots* snapshots);

  const Graph& graph_;
  std::vector<std::vector<Writer>> writers_;                    // by storage
  std::vector<int64_t> bytes_;                                  // by storage: latest size
  std::unordered_map<StorageId, std::vector<NodeId>> growers_;  // nodes that enlarged a storage, in order
  std::unordered_map<NodeId, NodeId> checks_;                   // node -> the check of its result
  std::vector<ValueId> origins_;                                // by value, see origin_of
  // Storages with lazily conjugated or negated views, which values do not record; they have no snapshots.
  std::unordered_set<StorageId> lazily_changed_;
};

// The steps of a Recipe::Group as a separate graph for the interpreter, so that running a few nodes of a large record
// costs only those nodes. Skipped nodes are replaced:
//
//   - an identity by its operand's value;
//   - an allocation by aten::empty_strided;
//   - a snapshot by an sg::constant, with an sg::alias for every tensor on it. The interpreter copies the constant
//     if it is written.
class RecipeGraph {
 public:
  RecipeGraph(const Graph& record, const Recipe& recipe, const Recipe::Group& group);
  C10_DISABLE_COPY_AND_ASSIGN(RecipeGraph);

  const Graph& graph() const { return graph_; }
  // Returns the nodes in execution order.
  const std::vector<NodeId>& nodes() const { return nodes_; }
  // Returns this graph's value for a value of the record; invalid if there is none.
  ValueId value(ValueId of_record) const { return copier_.value(of_record); }
  // Returns this graph's node for a node of the record; invalid for an identity or snapshot.
  NodeId node(NodeId of_record) const;
  // Returns the node of the record from which a node of this graph was created.
  NodeId of_record(NodeId here) const { return made_from_[here.index].node; }
  // Returns whether it is a copy of that node, not an allocation or part of a snapshot.
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
