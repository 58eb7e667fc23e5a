// Carries over what stays when a pass builds a graph anew beside the one it reads. That is phases, regions, constants,
// metadata, targets, notes, and at the end lifetimes. Internal to passes that rebuild a graph.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"

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

}  // namespace shadowgraph
