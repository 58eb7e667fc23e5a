// Carries over what stays when a pass builds a graph anew beside the one it reads. That is phases, regions, constants,
// metadata, targets, notes, and at the end lifetimes. Internal to passes that rebuild a graph.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/calls/node_calls.h"
#include "ir/analysis/identity.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class GraphRebuild {
 public:
  // Regions, phases and constants have the same ids in `made`, which must be empty.
  GraphRebuild(const Graph& read, Graph& made);

  TargetId target(TargetId id);
  TargetId target(const Target& target) { return made_.intern_target(target); }
  // `made` stands for `read`: later nodes may name it as their forward node, and it takes over its notes.
  void node(NodeId read, NodeId made);
  // The tensors that autograd keeps from `read` are kept from `made`, as the arguments or results that they are there.
  using ValueOf = std::function<ValueId(ValueId)>;
  void saved(NodeId read, NodeId made, const ValueOf& value_of);
  // What stands for `read`; invalid if nothing does.
  NodeId made(NodeId read) const { return nodes_[read]; }
  // `read`, born at `born`, in the new graph.
  StorageId storage(StorageId read, NodeId born);
  // All nodes for `read` are appended.
  void done(NodeId read) { behind_[read] = made_.last(); }
  // A node of this region comes next: its arguments are what they are now.
  void enter_region(RegionId region, const ValueOf& latest);

  // Carries over dependencies and lifetimes. `final` gives the new storage that holds what an old one held at the end.
  // That one dies when the old one died, or after its last use. Storages that others took the place of die after their
  // last use.
  void finish(const ValueOf& latest, const std::function<StorageId(StorageId)>& final);

 private:
  void lifetimes(const std::function<StorageId(StorageId)>& final);

  const Graph& read_;
  Graph& made_;
  std::vector<TargetId> targets_;
  IdMap<NodeId, NodeId> nodes_;
  IdMap<NodeId, NodeId> behind_;
  IdMap<StorageId, StorageId> first_;  // by old storage
  std::vector<bool> entered_;
};

// Appends nodes to a graph that a pass builds beside the one it reads. Internal to passes that rebuild a graph.
//
// New nodes stand for a node of the old graph and take over its region, phase, flags and source line. Views are given
// their geometry; other calls find theirs by running the operator on fake tensors, which is remembered by target,
// operand geometry and arguments.

class NodeEmitter {
 public:
  // Both must outlive it.
  NodeEmitter(const Graph& read, Graph& made) : read_(read), made_(made), calls_(made) {}

  // New nodes stand for this node of the graph that is read. `forward` is its forward node in the new graph.
  void stand_for(NodeId node, NodeId forward) {
    model_ = node;
    forward_ = forward;
  }
  // "aten::add.Tensor". The operator must be there.
  TargetId target(const std::string& name);

  // An argument of a node that is read, for one that is made; `value_of` gives the new self of a ValueId.
  template <class F>
  Argument mapped(const Argument& argument, F&& value_of) {
    switch (argument.kind) {
      case ArgumentKind::kValue:
        return Argument::of_value(value_of(argument.ref.value));
      case ArgumentKind::kList: {
        std::vector<Argument> elements;
        for (const Argument& element : read_.list(argument)) elements.push_back(mapped(element, value_of));
        return made_.make_list(elements);
      }
      default:
        return copied(argument);
    }
  }
  // One that holds no values.
  Argument copied(const Argument& argument);

  // A node without results yet.
  NodeId append(TargetId target, std::span<const Argument> arguments);
  NodeId append(TargetId target, std::initializer_list<Argument> arguments) {
    return append(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // Its results by the operator's rule, each in a new storage; false if it has none here or the operator refuses.
  bool find_results(NodeId node);
  // A call whose one result is a fresh tensor. Throws what the operator throws.
  ValueId call(TargetId target, std::initializer_list<Argument> arguments);
  // A call whose one result has this geometry in `storage`.
  ValueId call(TargetId target, std::initializer_list<Argument> arguments, const TensorGeometry& geometry,
               StorageId storage);
  ValueId add_result(NodeId node, const TensorGeometry& geometry, StorageId storage, bool requires_grad = false);
  // Not yet among the results.
  ValueId new_tensor(NodeId node, const TensorGeometry& geometry, StorageId storage);
  // A storage for what has this geometry, `bytes` long or longer.
  StorageId add_storage(NodeId born, const TensorGeometry& geometry, int64_t bytes = 0);

  // ---- Views
  ValueId as_strided(ValueId source, const TensorGeometry& geometry);
  // The first `bytes` of the storage that holds `source`, as one row of `dtype`; as many as make whole elements.
  ValueId flat(ValueId source, c10::ScalarType dtype, int64_t bytes);
  ValueId expand(ValueId source, std::span<const int64_t> sizes);

 private:
  struct Found {
    TensorGeometry geometry;
    int64_t bytes = 0;
  };
  struct Results {
    std::vector<std::vector<Found>> found;  // by return; a list has several
    std::vector<bool> is_list;
  };
  std::string key_of(NodeId node) const;
  Results run_on_fakes(NodeId node);

  const Graph& read_;
  Graph& made_;
  NodeId model_;
  NodeId forward_;
  NodeCalls calls_;
  std::unique_ptr<FakeTensorMode> mode_;
  std::unordered_map<std::string, TargetId> targets_;
  std::unordered_map<std::string, std::optional<Results>> known_;
};

}  // namespace shadowgraph
