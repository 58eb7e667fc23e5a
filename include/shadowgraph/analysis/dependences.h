// What must come before what, and orders that respect it.
//
//     const auto dependences = Dependences::of(graph);
//     if (dependences.can_move_before(graph, node, position)) graph.move_before(node, position);
//     sort_topologically(graph);             // true if anything moved
//
// A node depends on another that
//   - makes a value that it reads, or allocates a storage that it touches;
//   - wrote last what it reads or writes, or read what it overwrites since that was written (Effects). So random nodes
//     of one generator, and collectives, stay in order;
//   - reads the host or is unknown, if it is such a node itself: what the host saw, it saw in that order;
//   - is its forward node.
// A view looks at the geometry of its operands alone. It stays on the same side of writes that may change that (t_,
// resize_, set_, out=), not of others.
//
// Edges are direct ones only: a read depends on the last write, not on all before. So there are about as many as there
// are operands. Edits make a Dependences stale; run it again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class Dependences {
 public:
  // Linear.
  static Dependences of(const Graph& graph) { return of(graph, Effects::of(graph)); }
  static Dependences of(const Graph& graph, const Effects& effects);

  // What a node directly depends on, and what depends on it; each once.
  std::span<const NodeId> before(NodeId id) const { return row(before_, before_begin_, id); }
  std::span<const NodeId> after(NodeId id) const { return row(after_, after_begin_, id); }
  size_t edge_count() const { return before_.size(); }

  // Says whether `node` may stand directly before `position` (invalid: at the end), everything else staying where it
  // is. Nothing that it depends on, or that depends on it, may be between. Placeholders stay first, sg::output and
  // sg::gradient last. Costs the node's edges.
  bool can_move_before(const Graph& graph, NodeId node, NodeId position) const;

  // A place where `nodes` can all be run, one right after the other: before `position` (invalid: at the end). First
  // `delayed` must be moved there, too, in this order, to stand behind them.
  struct MeetingPoint {
    NodeId position;
    std::vector<NodeId> delayed;
    // The last of `nodes` need not move, and nobody has to wait.
    bool at_last = true;
    // If there is no such place: a node that needs one of them and that another needs, or one too far away to be found.
    NodeId obstacle;
  };
  // Nodes that wait are looked for among at most `farthest` nodes. Costs the edges of `nodes`, and of those looked at.
  MeetingPoint meeting_point(const Graph& graph, std::span<const NodeId> nodes, size_t farthest = 10000) const;

  // Whether `nodes` can become one: no way leads out of them and back in. If one does, the node where it comes back.
  // Costs the edges of the nodes from the first of them to the last.
  std::optional<NodeId> way_back_into(const Graph& graph, std::span<const NodeId> nodes) const;

 private:
  static std::span<const NodeId> row(const std::vector<NodeId>& edges, const std::vector<uint32_t>& begin, NodeId id) {
    return std::span(edges).subspan(begin[id.index], begin[id.index + 1] - begin[id.index]);
  }
  std::vector<NodeId> before_, after_;
  std::vector<uint32_t> before_begin_, after_begin_;  // by node index, one more than there are
};

// Returns all nodes so that each comes after what it depends on. They keep their order, but for nodes that must come
// earlier: those come just before the first that needs them. Nodes of one group (`group_of(node)` >= 0) come together.
// Throws GraphEditError if nodes, or groups, depend on one another in a circle; the message names one. Linear; no
// recursion.
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences);
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences,
                                      const IdMap<NodeId, int32_t>& group_of);

// Puts the nodes into that order. Whether any moved.
bool sort_topologically(Graph& graph);

}  // namespace shadowgraph
