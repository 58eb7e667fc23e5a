// Where new nodes go: a place in program order that stays right while the graph around it is edited.
//
//     InsertionPoint at(graph, mm);                                   // before mm
//     NodeId t = at.insert(transpose, {Argument::of_value(weight)});  // in mm's region and phase, under its modes
//     graph.erase(mm);                                                // `at` now stands before what followed mm
//
// Nodes inserted one after another come in that order. They take over from the node named at construction: region,
// phase, grad mode and autocast flags, forward node and source line, but no notes. Operands must be made before the
// place, and a storage that died earlier lives on until the new node. sg:: placeholders come first, sg::output and
// sg::gradient last; a place among the placeholders means the one after them for every other node. Constant time.
// (torch.fx has graph.inserting_before; Cranelift calls it a cursor.)
//
// The graph must outlive the point and must not be moved while it stands in it. Not copyable: the graph knows its
// points.
#pragma once

#include <initializer_list>
#include <span>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class InsertionPoint {
 public:
  // Before `node`.
  InsertionPoint(Graph& graph, NodeId node) : InsertionPoint(graph, node, node) {}
  // After `node`.
  static InsertionPoint after(Graph& graph, NodeId node) { return {graph, node, graph.node(node).next}; }
  // After all nodes but sg::output and sg::gradient. New nodes are in the root region and the forward phase.
  static InsertionPoint at_end(Graph& graph);
  ~InsertionPoint();
  InsertionPoint(const InsertionPoint&) = delete;
  InsertionPoint& operator=(const InsertionPoint&) = delete;

  // Throws GraphEditError if an operand is not made before here or the target has no place here.
  NodeId insert(TargetId target, std::span<const Argument> arguments);
  NodeId insert(TargetId target, std::initializer_list<Argument> arguments) {
    return insert(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // The node before which the next one goes; invalid: at the end.
  NodeId position() const { return position_; }

 private:
  friend class Graph;
  InsertionPoint(Graph& graph, NodeId model, NodeId position);
  // `node` is about to leave the list.
  void leave(NodeId node) {
    if (position_ == node) position_ = graph_.node(node).next;
  }

  Graph& graph_;
  NodeId position_;
  // What new nodes take over.
  RegionId region_ = Graph::kRootRegion;
  PhaseId phase_ = Graph::kForward;
  NodeFlags flags_;
  NodeId forward_;
  StringId source_;
};

}  // namespace shadowgraph
