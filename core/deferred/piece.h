// Makes the steps of a Recipe::Group a graph of their own, for the interpreter. Running a few nodes of a large record
// then costs what those few cost. What was left out is gone:
//
//   - an identity is its operand's value;
//   - an allocation is aten::empty_strided;
//   - what a snapshot holds is an sg::constant, with an sg::alias for every tensor on it. The interpreter copies the
//     constant if it is written.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/deferred/recipe.h"
#include "shadowgraph/edit/copy.h"

namespace shadowgraph {

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
  NodeId append(Builtin target, const Argument& argument);
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
