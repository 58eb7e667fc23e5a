// Copies everything that a pass leaves unchanged when it builds a new graph: phases, regions, constants, metadata,
// targets, notes and lifetimes. Internal to passes that rebuild a graph.
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
  // `made` must be empty. Regions, phases and constants keep their ids.
  GraphRebuild(const Graph& read, Graph& made);

  TargetId target(TargetId id);
  TargetId target(const Target& target) { return new_.intern_target(target); }
  // Records that `made` replaces `read`: later nodes may have it as their forward node, and it takes over the notes.
  void node(NodeId read, NodeId made);
  // The tensors that `read` saves for backward are saved by `made`, as its corresponding arguments or results.
  using ValueOf = std::function<ValueId(ValueId)>;
  void saved(NodeId read, NodeId made, const ValueOf& value_of);
  // Returns the replacement of `read`; invalid if there is none.
  NodeId replacement_of(NodeId read) const { return nodes_[read]; }
  // Returns the new storage for `read`, allocated at `born`.
  StorageId storage(StorageId read, NodeId born);
  // Call when all nodes for `read` are appended.
  void done(NodeId read) { behind_[read] = new_.last(); }
  // Call before appending a node of this region: sets the region's arguments to their current values.
  void enter_region(RegionId region, const ValueOf& latest);

  // Copies dependencies and lifetimes. `final` maps an old storage to the new one with its final contents, which is
  // freed where the old one was, or after its last use. Other new storages are freed after their last use.
  void finish(const ValueOf& latest, const std::function<StorageId(StorageId)>& final);

 private:
  void lifetimes(const std::function<StorageId(StorageId)>& final);

  const Graph& old_;
  Graph& new_;
  std::vector<TargetId> targets_;
  IdMap<NodeId, NodeId> nodes_;
  IdMap<NodeId, NodeId> behind_;
  IdMap<StorageId, StorageId> first_;  // by old storage
  std::vector<bool> entered_;
};

// Appends nodes to the new graph. Internal to passes that rebuild a graph.
//
// New nodes inherit the region, phase, flags and source line of the old node that they replace. Views are given their
// geometry; the results of other calls are found by running the operator on fake tensors, and cached.
class NodeEmitter {
 public:
  // Both must outlive this object.
  NodeEmitter(const Graph& read, Graph& made) : old_(read), new_(made), calls_(made) {}

  // Sets the node of the old graph that new nodes replace. `forward` is its forward node in the new graph.
  void stand_for(NodeId node, NodeId forward) {
    model_ = node;
    forward_ = forward;
  }
  // "aten::add.Tensor". The operator must be registered.
  TargetId target(const std::string& name);

  // Converts an argument of an old node to the new graph; `value_of` maps values.
  template <class F>
  Argument mapped(const Argument& argument, F&& value_of) {
    switch (argument.kind) {
      case ArgumentKind::kValue:
        return Argument::of_value(value_of(argument.ref.value));
      case ArgumentKind::kList:
        return new_.make_list(mapped(old_.list(argument), value_of));
      default:
        return copied(argument);
    }
  }
  template <class F>
  std::vector<Argument> mapped(std::span<const Argument> arguments, F&& value_of) {
    std::vector<Argument> all;
    for (const Argument& argument : arguments) all.push_back(mapped(argument, value_of));
    return all;
  }
  // Converts an argument without values.
  Argument copied(const Argument& argument);

  // Appends a node without results.
  NodeId append(TargetId target, std::span<const Argument> arguments);
  NodeId append(TargetId target, std::initializer_list<Argument> arguments) {
    return append(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // Adds the results given by the operator's shape rule, each in a new storage; false if it has none or fails.
  bool find_results(NodeId node);
  // Appends a call of "aten::add.Tensor" with one newly allocated result. Rethrows the operator's exceptions.
  ValueId call(const std::string& name, std::initializer_list<Argument> arguments);
  // Appends a call whose one result has this geometry in `storage`, or in a new one.
  ValueId call(const std::string& name, std::initializer_list<Argument> arguments, const TensorGeometry& geometry,
               StorageId storage = {});
  ValueId add_result(NodeId node, const TensorGeometry& geometry, StorageId storage, bool requires_grad = false);
  // Does not add it to the node's results.
  ValueId new_tensor(NodeId node, const TensorGeometry& geometry, StorageId storage);
  // Adds a storage for a tensor of this geometry, with at least `bytes` bytes.
  StorageId add_storage(NodeId born, const TensorGeometry& geometry, int64_t bytes = 0);

  ValueId as_strided(ValueId source, const TensorGeometry& geometry);
  // Returns the first `bytes` of the storage of `source` as a 1-D tensor of `dtype`, rounded up to whole elements.
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
  Results run_on_fakes(NodeId node);

  const Graph& old_;
  Graph& new_;
  NodeId model_;
  NodeId forward_;
  NodeCalls calls_;
  std::unique_ptr<FakeTensorMode> mode_;
  std::unordered_map<std::string, TargetId> targets_;
  std::unordered_map<std::string, std::optional<Results>> known_;
};

}  // namespace shadowgraph
