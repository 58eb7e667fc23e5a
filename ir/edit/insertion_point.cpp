#include "shadowgraph/edit/insertion_point.h"

#include "ir/graph_editor.h"
#include "ir/records.h"

namespace shadowgraph {

// Registers with the graph, which tells all points when a node goes (Graph::unlink). A point's own settings are read
// once: the model node may be erased later.
InsertionPoint::InsertionPoint(Graph& graph, NodeId model, NodeId position) : graph_(graph), position_(position) {
  graph.insertion_points_.push_back(this);
  if (!model.valid()) return;
  const Node& node = graph.node(model);
  region_ = node.region;
  phase_ = node.phase;
  flags_ = node.flags;
  forward_ = node.forward;
  source_ = node.source;
}

// The end is before sg::output and sg::gradient, which come last.
InsertionPoint InsertionPoint::at_end(Graph& graph) {
  NodeId position;
  for (NodeId n = graph.last(); n.valid() && Graph::Editor::rank_of(graph.node(n).target) == Graph::Editor::kEndRank;
       n = graph.node(n).previous) {
    position = n;
  }
  return {graph, NodeId(), position};
}

// The point is nearly always the one made last, so that erasing from the list is cheap.
InsertionPoint::~InsertionPoint() { std::erase(graph_.insertion_points_, this); }

NodeId InsertionPoint::insert(TargetId target, std::span<const Argument> arguments) {
  const int rank = Graph::Editor::rank_of(target);
  // A place among the placeholders means the one after them for anything else.
  if (rank != Graph::Editor::kPlaceholderRank) {
    while (position_.valid() &&
           Graph::Editor::rank_of(graph_.node(position_).target) == Graph::Editor::kPlaceholderRank) {
      position_ = graph_.node(position_).next;
    }
  }
  const NodeId before = position_.valid() ? graph_.node(position_).previous : graph_.last();
  Graph::Editor(graph_).check_order_of_kinds(before, target, position_);
  // Only neighbours of equal rank can be another sg::output, so the walk is short.
  if (target == target_of(Builtin::kOutput)) {
    for (NodeId n = graph_.last(); n.valid() && Graph::Editor::rank_of(graph_.node(n).target) == rank;
         n = graph_.node(n).previous) {
      if (graph_.node(n).target == target)
        throw GraphEditError("a graph has one sg::output; set its arguments instead");
    }
  }
  Graph::Editor(graph_).check_operands(arguments, position_, "insert a node");
  const NodeId id = graph_.insert_before(position_, target, arguments);
  Node& node = mutable_node(graph_, id);
  node.region = region_;
  node.phase = phase_;
  node.flags = flags_;
  // The model's forward node may be erased by now, or come later than this place; a backward node must come after it.
  if (forward_.valid() && !graph_.is_erased(forward_) && graph_.is_before(forward_, id)) node.forward = forward_;
  node.source = source_;
  // An operand whose storage died before lives on until the new node.
  graph_.for_each_input(id, [&](ValueId v) {
    if (graph_.value(v).storage.valid()) graph_.extend_life(graph_.value(v).storage, id);
  });
  return id;
}

}  // namespace shadowgraph
