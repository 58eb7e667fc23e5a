// Edits of program order. Each first checks that all still comes after what it needs.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "ir/graph_editor.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Program order has three parts: placeholders, calls, and sg::output and sg::gradient at the end.
int Graph::Editor::rank_of(TargetId target) {
  if (target.index <= target_of(Builtin::kConstant).index) return Editor::kPlaceholderRank;
  return target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient) ? Editor::kEndRank : 1;
}

// Only neighbours need be looked at: the rest of the program is in order already.
void Graph::Editor::check_order_of_kinds(NodeId before, TargetId target, NodeId after) const {
  const int rank = rank_of(target);
  if ((before.valid() && rank_of(graph_.node(before).target) > rank) ||
      (after.valid() && rank_of(graph_.node(after).target) < rank)) {
    throw GraphEditError("no place for a call of " + graph_.target(target).name() +
                         ": placeholders come first, sg::output and sg::gradient last");
  }
}

// Looks at labels, not at the whole program: constant time an operand.
void Graph::Editor::check_operands(std::span<const Argument> arguments, NodeId position, const char* what) const {
  graph_.for_each_value(arguments, [&](ValueId v) {
    const NodeId producer = v.index < graph_.values_.size() ? graph_.value(v).producer : NodeId();
    if (!producer.valid() || graph_.is_erased(producer) ||
        (position.valid() && !graph_.is_before(producer, position))) {
      throw GraphEditError(fmt::format("cannot {}: an operand (value id {}) is not made before that place{}", what,
                                       v.index, position.valid() ? ", which is before" + describe(position) : ""));
    }
  });
}

// Checks that the nodes that come to stand earlier do not refer to those that come to stand later. Moving a range up is
// the same as moving what lies between down:
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
    // A node needs the allocation of a storage, too, even where no value connects the two: a view by set_ is an
    // example.
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
      throw GraphEditError(
          "cannot move a node over one that it depends on (by a value, its storage, or as backward of it):" +
          describe(n));
    }
  }
}

// Ranges move as one, with one check at their borders, since moving node by node would pass through states that are not
// legal.
void Graph::move_range_before(NodeId first, NodeId last, NodeId position) {
  if (is_before(last, first)) throw GraphEditError("no range: it ends before it begins");
  if (position == node(last).next || position == first) return;
  if (position.valid() && is_before(first, position) && !is_before(last, position)) {
    throw GraphEditError("cannot move a range into itself");
  }
  Editor(*this).check_range_move(first, last, position);
  const NodeId before = position.valid() ? node(position).previous : last_;
  Editor(*this).check_order_of_kinds(before, node(first).target, NodeId());
  Editor(*this).check_order_of_kinds(NodeId(), node(last).target, position);

  // Deaths are told of nodes, so moving nodes moves them. What must not happen is that a storage dies before somebody
  // reads it.
  const bool earlier = position.valid() && is_before(position, first);
  std::vector<NodeId> range;
  for (NodeId n = first;; n = node(n).next) {
    range.push_back(n);
    if (n == last) break;
  }
  if (earlier) {
    // What died within the range may be used by the nodes that now come after it. What was born there was not.
    const NodeId heir = node(first).previous;
    for (NodeId n : range) {
      std::vector<StorageId> stay;
      std::vector<StorageId> go;
      for (StorageId s : frees(n)) {
        const NodeId born = storage(s).born;
        // A storage that was born within the range was unknown to the nodes that were in front of it.
        const bool inside = born.valid() && !is_erased(born) && !is_before(born, first) && !is_before(last, born);
        (inside ? stay : go).push_back(s);
      }
      if (go.empty()) continue;
      set_frees(n, stay);
      Editor(*this).add_frees(heir, go);
    }
  }
  for (NodeId n : range) Editor(*this).unlink(n);
  for (NodeId n : range) Editor(*this).link_before(n, position);
  // The range moved down: whatever it touches must live until there.
  if (earlier) return;
  for (NodeId n : range) {
    const auto touch = [&](ValueId v) {
      if (value(v).storage.valid()) extend_life(value(v).storage, n);
    };
    for_each_input(n, touch);
    for_each_output(n, touch);
  }
}

void Graph::reorder(std::span<const NodeId> order) {
  if (!insertion_points_.empty()) throw GraphEditError("an InsertionPoint stands among the nodes to be reordered");
  std::vector<uint32_t> positions(nodes_.size(), NodeId::kNone);
  uint32_t next = 0;
  for (NodeId n : order) {
    if (n.index >= nodes_.size() || is_erased(n) || positions[n.index] != NodeId::kNone) {
      throw GraphEditError("the new order names a node twice, or one that is not there");
    }
    positions[n.index] = next++;
  }
  if (next != live_nodes_) throw GraphEditError(fmt::format("the new order has {} of {} nodes", next, live_nodes_));

  // Everything is found out in one walk over the new order: that it is legal, and where each storage is touched last.
  std::vector<NodeId> last_touch(storages_.size());
  int rank = Editor::kPlaceholderRank;
  for (NodeId n : order) {
    // A node refers to another "later" if that comes at or behind its own new place.
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
      throw GraphEditError("in the new order a node comes before one that it depends on:" + Editor(*this).describe(n));
  }

  // Links and labels are made anew, with the widest gaps.
  first_ = last_ = NodeId();
  for (NodeId n : order) {
    nodes_[n.index].previous = last_;
    (last_.valid() ? nodes_[last_.index].next : first_) = n;
    order_[n.index] = (last_.valid() ? order_[last_.index] : 0) + (uint64_t{1} << 32);
    last_ = n;
  }
  if (last_.valid()) nodes_[last_.index].next = NodeId();
  // What died before a node that now comes later and needs it.
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

}  // namespace shadowgraph
