// Edits of single properties of nodes, values and storages, and of program order. Each first checks whether it is
// valid, so that an exception leaves the graph unchanged.
#include <fmt/format.h>

#include <algorithm>

#include "ir/graph_editor.h"
#include "ir/operators/operator_name.h"
#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

std::string Graph::Editor::describe(NodeId id) const { return "\n  " + to_text(graph_, id); }

std::vector<NodeId> Graph::users_of(ValueId id) const {
  std::vector<NodeId> users;
  for_each_use(id, [&](NodeId n) { users.push_back(n); });
  std::sort(users.begin(), users.end(), [&](NodeId a, NodeId b) { return is_before(a, b); });
  users.erase(std::unique(users.begin(), users.end()), users.end());
  return users;
}

// Compares targets, not nodes: a graph of a million nodes has about a hundred targets.
std::vector<NodeId> nodes_calling(const Graph& graph, std::string_view name) {
  std::vector<bool> wanted(graph.target_count());
  for (uint32_t i = 0; i < graph.target_count(); ++i) {
    wanted[i] = matches_operator(name, graph.target(TargetId(i)).name());
  }
  std::vector<NodeId> found;
  for (NodeId n : graph.nodes()) {
    if (wanted[graph.node(n).target.index]) found.push_back(n);
  }
  return found;
}

bool Graph::Editor::mentions(std::span<const Argument> arguments, ValueId id) const {
  bool found = false;
  graph_.for_each_value(arguments, [&](ValueId v) { found = found || v == id; });
  return found;
}

void Graph::set_region(NodeId id, RegionId region) {
  if (region.index >= region_count()) throw GraphError("the region does not exist:" + Editor(*this).describe(id));
  nodes_[id.index].region = region;
}

void Graph::set_phase(NodeId id, PhaseId phase) {
  if (phase.index >= phase_count()) throw GraphError("the phase does not exist:" + Editor(*this).describe(id));
  nodes_[id.index].phase = phase;
}

void Graph::set_source(NodeId id, std::string_view source) {
  nodes_[id.index].source = source.empty() ? StringId() : intern(source);
}

void Graph::set_requires_grad(ValueId id, bool requires_grad) { values_[id.index].requires_grad = requires_grad; }

void Graph::set_storage_kind(StorageId id, StorageKind kind) { storages_[id.index].kind = kind; }

// Program order has three parts: placeholders, calls, and the end nodes sg::output and sg::gradient.
int Graph::Editor::rank_of(TargetId target) {
  return shadowgraph::is_placeholder(target) ? kPlaceholderRank : is_end(target) ? kEndRank : 1;
}

// Checking the neighbors is enough, since the rest of the program is ordered already.
void Graph::Editor::check_order_of_kinds(NodeId before, TargetId target, NodeId after) const {
  const int rank = rank_of(target);
  if ((before.valid() && rank_of(graph_.node(before).target) > rank) ||
      (after.valid() && rank_of(graph_.node(after).target) < rank)) {
    throw GraphError("cannot place a call of " + graph_.target(target).name() +
                     " here: placeholders come first, sg::output and sg::gradient last");
  }
}

// Compares labels: constant time per operand.
void Graph::Editor::check_operands(std::span<const Argument> arguments, NodeId position, const char* what) const {
  graph_.for_each_value(arguments, [&](ValueId v) {
    const NodeId producer = v.index < graph_.values_.size() ? graph_.value(v).producer : NodeId();
    if (!producer.valid() || graph_.is_erased(producer) ||
        (position.valid() && !graph_.is_before(producer, position))) {
      throw GraphError(fmt::format("cannot {}: an operand (value id {}) is not defined before that place{}", what,
                                   v.index, position.valid() ? ", which is before" + describe(position) : ""));
    }
  });
}

// Checks that the nodes that come to be earlier do not refer to those that come to be later. Moving a range up is the
// same as moving the nodes in between down:
//
//     ... position [ between ] [ range ] ...       ->       ... [ range ] [ between ] ...
void Graph::Editor::check_range_move(NodeId first, NodeId last, NodeId position) const {
  const bool earlier = position.valid() && graph_.is_before(position, first);
  const NodeId rising = earlier ? first : graph_.node(last).next;
  const NodeId rising_end = earlier ? graph_.node(last).next : position;
  const NodeId sinking = earlier ? position : first;
  const NodeId sinking_last = earlier ? graph_.node(first).previous : last;
  const auto sinks = [&](NodeId n) {
    return n.valid() && !graph_.is_erased(n) && !graph_.is_before(n, sinking) && !graph_.is_before(sinking_last, n);
  };
  for (NodeId n = rising; n != rising_end; n = graph_.node(n).next) {
    bool refers = sinks(graph_.node(n).forward);
    // A node also needs the allocation of its storages, even if no value connects the two, such as a view by set_.
    const auto see = [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      refers = refers || sinks(graph_.value(v).producer) || (s.valid() && sinks(graph_.storage(s).born));
    };
    graph_.for_each_input(n, see);
    graph_.for_each_output(n, [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      refers = refers || (s.valid() && sinks(graph_.storage(s).born));
    });
    if (refers) {
      throw GraphError(
          "cannot move a node across one that it depends on (by a value, its storage, or its forward node):" +
          describe(n));
    }
  }
}

// Moves a range at once, with one check at its borders, since moving node by node would pass through invalid states.
void Graph::move_range_before(NodeId first, NodeId last, NodeId position) {
  if (is_before(last, first)) throw GraphError("invalid range: the last node comes before the first");
  if (position == node(last).next || position == first) return;
  if (position.valid() && is_before(first, position) && !is_before(last, position)) {
    throw GraphError("cannot move a range into itself");
  }
  Editor(*this).check_range_move(first, last, position);
  const NodeId before = position.valid() ? node(position).previous : last_;
  Editor(*this).check_order_of_kinds(before, node(first).target, NodeId());
  Editor(*this).check_order_of_kinds(NodeId(), node(last).target, position);

  // Frees belong to nodes and move with them. A storage must not be freed before it is read.
  const bool earlier = position.valid() && is_before(position, first);
  std::vector<NodeId> range;
  for (NodeId n = first;; n = node(n).next) {
    range.push_back(n);
    if (n == last) break;
  }
  if (earlier) {
    // A storage freed within the range may be used by the nodes that now come after it, unless it was allocated there.
    const NodeId successor = node(first).previous;
    for (NodeId n : range) {
      std::vector<StorageId> stay;
      std::vector<StorageId> go;
      for (StorageId s : frees(n)) {
        const NodeId born = storage(s).born;
        // A storage allocated within the range was not accessible to the nodes in front of it.
        const bool inside = born.valid() && !is_erased(born) && !is_before(born, first) && !is_before(last, born);
        (inside ? stay : go).push_back(s);
      }
      if (go.empty()) continue;
      set_frees(n, stay);
      Editor(*this).add_frees(successor, go);
    }
  }
  for (NodeId n : range) Editor(*this).unlink(n);
  for (NodeId n : range) Editor(*this).link_before(n, position);
  // The range moved down: everything it accesses must live until there.
  if (earlier) return;
  for (NodeId n : range) {
    const auto touch = [&](ValueId v) {
      if (value(v).storage.valid()) extend_lifetime(value(v).storage, n);
    };
    for_each_input(n, touch);
    for_each_output(n, touch);
  }
}

void Graph::reorder(std::span<const NodeId> order) {
  if (!insertion_points_.empty())
    throw GraphError("cannot reorder the nodes while there is an InsertionPoint; destroy it first");
  std::vector<uint32_t> positions(nodes_.size(), NodeId::kNone);
  uint32_t next = 0;
  for (NodeId n : order) {
    if (n.index >= nodes_.size() || is_erased(n) || positions[n.index] != NodeId::kNone) {
      throw GraphError("the new order lists a node twice, or one that does not exist");
    }
    positions[n.index] = next++;
  }
  if (next != live_nodes_) throw GraphError(fmt::format("the new order lists only {} of {} nodes", next, live_nodes_));

  // One walk over the new order checks that it is valid and finds the last access of each storage.
  std::vector<NodeId> last_touch(storages_.size());
  int rank = Editor::kPlaceholderRank;
  for (NodeId n : order) {
    // True if node `other` comes at or after the node's new position.
    const auto later = [&](NodeId other) {
      return other.valid() && !is_erased(other) && positions[other.index] >= positions[n.index];
    };
    bool good = !later(node(n).forward) && Editor::rank_of(node(n).target) >= rank;
    rank = Editor::rank_of(node(n).target);
    const auto touch = [&](ValueId v) {
      const StorageId s = value(v).storage;
      if (!s.valid()) return;
      last_touch[s.index] = n;
      good = good && (storage(s).born == n || !later(storage(s).born));
    };
    for_each_input(n, [&](ValueId v) {
      good = good && !later(value(v).producer);
      touch(v);
    });
    for_each_output(n, touch);
    if (!good)
      throw GraphError("in the new order a node comes before one that it depends on:" + Editor(*this).describe(n));
  }

  // Links and labels are recreated, with the widest gaps.
  first_ = last_ = NodeId();
  for (NodeId n : order) {
    nodes_[n.index].previous = last_;
    (last_.valid() ? nodes_[last_.index].next : first_) = n;
    order_[n.index] = (last_.valid() ? order_[last_.index] : 0) + (uint64_t{1} << 32);
    last_ = n;
  }
  if (last_.valid()) nodes_[last_.index].next = NodeId();
  // Storages freed before a node that now comes later and needs them.
  std::vector<std::pair<NodeId, StorageId>> later;
  for (NodeId n : order) {
    std::vector<StorageId> stay;
    for (StorageId s : frees(n)) {
      const NodeId touch = last_touch[s.index];
      if (touch.valid() && is_before(n, touch)) {
        later.emplace_back(touch, s);
      } else {
        stay.push_back(s);
      }
    }
    if (stay.size() != frees(n).size()) set_frees(n, stay);
  }
  for (const auto& [n, s] : later) {
    if (Editor::rank_of(node(n).target) != Editor::kEndRank) Editor(*this).add_frees(n, std::span(&s, 1));
  }
}

// Registers with the graph, which updates all points when a node is erased (Graph::unlink). The model node's settings
// are read once, since it may be erased later.
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

InsertionPoint InsertionPoint::at_end(Graph& graph) {
  NodeId position;
  for (NodeId n = graph.last(); n.valid() && Graph::Editor::rank_of(graph.node(n).target) == Graph::Editor::kEndRank;
       n = graph.node(n).previous) {
    position = n;
  }
  return {graph, NodeId(), position};
}

// The point is nearly always the most recent one, so erasing it from the list is cheap.
InsertionPoint::~InsertionPoint() { std::erase(graph_.insertion_points_, this); }

NodeId InsertionPoint::insert(TargetId target, std::span<const Argument> arguments) {
  const int rank = Graph::Editor::rank_of(target);
  // For other nodes, a position among the placeholders means the one after them.
  if (rank != Graph::Editor::kPlaceholderRank) {
    while (position_.valid() &&
           Graph::Editor::rank_of(graph_.node(position_).target) == Graph::Editor::kPlaceholderRank) {
      position_ = graph_.node(position_).next;
    }
  }
  const NodeId before = position_.valid() ? graph_.node(position_).previous : graph_.last();
  Graph::Editor(graph_).check_order_of_kinds(before, target, position_);
  // Only neighbors of equal rank can be another sg::output, so the walk is short.
  if (target == target_of(Builtin::kOutput)) {
    for (NodeId n = graph_.last(); n.valid() && Graph::Editor::rank_of(graph_.node(n).target) == rank;
         n = graph_.node(n).previous) {
      if (graph_.node(n).target == target)
        throw GraphError("the graph already has an sg::output; change its arguments instead");
    }
  }
  Graph::Editor(graph_).check_operands(arguments, position_, "insert a node");
  const NodeId id = graph_.insert_before(position_, target, arguments);
  Node& node = mutable_node(graph_, id);
  node.region = region_;
  node.phase = phase_;
  node.flags = flags_;
  // The model's forward node may be erased by now, or come after this position; a backward node must come after it.
  if (forward_.valid() && !graph_.is_erased(forward_) && graph_.is_before(forward_, id)) node.forward = forward_;
  node.source = source_;
  // An operand whose storage was freed earlier is kept alive up to the new node.
  graph_.for_each_input(id, [&](ValueId v) {
    if (graph_.value(v).storage.valid()) graph_.extend_lifetime(graph_.value(v).storage, id);
  });
  return id;
}

}  // namespace shadowgraph
