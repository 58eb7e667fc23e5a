// Boost Graph Library view of a graph. Requires the headers of Boost.Graph.
//
// Makes Boost's algorithms available to users: dominators, components, cuts, orders. shadowgraph itself does not use
// it. Constructing the view is linear. For orders that respect side effects, see shadowgraph/graph/analysis.h.
#pragma once

#include <boost/graph/adjacency_iterator.hpp>
#include <boost/graph/graph_traits.hpp>
#include <boost/graph/properties.hpp>
#include <boost/iterator/iterator_facade.hpp>
#include <boost/property_map/property_map.hpp>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// The def-use graph: nodes are vertices, with one edge from the producer of a value to each argument that reads it.
//
//     const DefUseGraph def_use(graph);
//     std::vector<NodeId> order;
//     boost::topological_sort(def_use, std::back_inserter(order));   // in reverse order, as always with BGL
//
// Models VertexListGraph, AdjacencyGraph and BidirectionalGraph (hence IncidenceGraph). There are parallel edges if a
// node reads a value twice. The vertex_index property is the position in program order, without gaps for erased nodes.
// Topological sort, dominator tree, components, breadth-first and depth-first search work directly; max-flow requires a
// copy with capacities.
//
// The view refers to the graph and uses 8 bytes a node; edits of the graph invalidate it. Edges represent values only.
// Nodes are also ordered by writes to storages, see shadowgraph/graph/analysis.h.

// An argument that reads a value. `use` identifies the edge; Graph::use(use) has the value.
struct DefUseEdge {
  NodeId from;
  NodeId to;
  uint32_t use = Argument::kNoUse;
  friend bool operator==(const DefUseEdge& a, const DefUseEdge& b) { return a.use == b.use; }
};

// Iterates over the values in `arguments`, including those in lists.
class ValueCursor {
 public:
  ValueCursor() = default;
  ValueCursor(const Graph& graph, std::span<const Argument> arguments)
      : graph_(&graph), inner_{arguments.data(), arguments.data() + arguments.size()} {
    settle();
  }
  bool at_end() const { return inner_.at == inner_.end; }
  const Argument& operator*() const { return *inner_.at; }
  void next() {
    ++inner_.at;
    settle();
  }
  friend bool operator==(const ValueCursor& a, const ValueCursor& b) {
    return a.at_end() || b.at_end() ? a.at_end() == b.at_end() : a.inner_.at == b.inner_.at;
  }

 private:
  struct Frame {
    const Argument* at = nullptr;
    const Argument* end = nullptr;
  };
  // Advances to the next value, starting at the current argument.
  void settle() {
    while (true) {
      if (inner_.at == inner_.end) {
        if (outer_.empty()) return;
        inner_ = outer_.back();
        outer_.pop_back();
      } else if (inner_.at->kind == ArgumentKind::kValue) {
        return;
      } else if (inner_.at->kind == ArgumentKind::kList) {
        const auto list = graph_->list(*inner_.at++);
        outer_.push_back(inner_);
        inner_ = {list.data(), list.data() + list.size()};
      } else {
        ++inner_.at;
      }
    }
  }

  const Graph* graph_ = nullptr;
  Frame inner_;
  std::vector<Frame> outer_;  // remaining elements of enclosing lists; allocates only inside a list
};

class OutEdgeIterator
    : public boost::iterator_facade<OutEdgeIterator, DefUseEdge, boost::forward_traversal_tag, DefUseEdge> {
 public:
  OutEdgeIterator() = default;
  OutEdgeIterator(const Graph& graph, NodeId node) : graph_(&graph), node_(node), results_(graph, graph.results(node)) {
    find_used();
  }

 private:
  friend class boost::iterator_core_access;
  DefUseEdge dereference() const { return {node_, graph_->use(use_).user, use_}; }
  bool equal(const OutEdgeIterator& other) const { return use_ == other.use_; }
  void increment() {
    use_ = graph_->use(use_).next;
    if (use_ != Argument::kNoUse) return;
    results_.next();
    find_used();
  }
  void find_used() {
    for (; !results_.at_end(); results_.next()) {
      use_ = graph_->value((*results_).ref.value).first_use;
      if (use_ != Argument::kNoUse) return;
    }
    use_ = Argument::kNoUse;
  }

  const Graph* graph_ = nullptr;
  NodeId node_;
  ValueCursor results_;
  uint32_t use_ = Argument::kNoUse;
};

class InEdgeIterator
    : public boost::iterator_facade<InEdgeIterator, DefUseEdge, boost::forward_traversal_tag, DefUseEdge> {
 public:
  InEdgeIterator() = default;
  InEdgeIterator(const Graph& graph, NodeId node)
      : graph_(&graph), node_(node), arguments_(graph, graph.arguments(node)) {}

 private:
  friend class boost::iterator_core_access;
  DefUseEdge dereference() const {
    const Argument::ValueRef ref = (*arguments_).ref;
    return {graph_->value(ref.value).producer, node_, ref.use};
  }
  bool equal(const InEdgeIterator& other) const { return arguments_ == other.arguments_; }
  void increment() { arguments_.next(); }

  const Graph* graph_ = nullptr;
  NodeId node_;
  ValueCursor arguments_;
};

class DefUseGraph {
 public:
  explicit DefUseGraph(const Graph& graph) : graph_(&graph) {
    nodes_.reserve(graph.node_count());
    positions_.assign(graph.node_capacity(), NodeId::kNone);
    for (NodeId n : graph.nodes()) {
      positions_[n.index] = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back(n);
    }
  }
  const Graph& graph() const { return *graph_; }
  const std::vector<NodeId>& nodes() const { return nodes_; }
  uint32_t position(NodeId id) const { return positions_[id.index]; }

 private:
  const Graph* graph_;
  std::vector<NodeId> nodes_;
  std::vector<uint32_t> positions_;
};

// The vertex_index property map.
struct PositionMap {
  using key_type = NodeId;
  using value_type = size_t;
  using reference = size_t;
  using category = boost::readable_property_map_tag;
  const DefUseGraph* graph = nullptr;
  friend size_t get(const PositionMap& map, NodeId id) { return map.graph->position(id); }
};

// An IdMap as a property map that algorithms can write: colors, distances, predecessors.
//
//     IdMap<NodeId, int> distance;
//     boost::record_distances(property_map_of(distance), boost::on_tree_edge())
template <class I, class T>
struct IdPropertyMap {
  using key_type = I;
  using value_type = T;
  using reference = T&;
  using category = boost::lvalue_property_map_tag;
  IdMap<I, T>* map = nullptr;
  T& operator[](I id) const { return (*map)[id]; }
  friend T& get(const IdPropertyMap& m, I id) { return (*m.map)[id]; }
  friend void put(const IdPropertyMap& m, I id, T value) { (*m.map)[id] = std::move(value); }
};
template <class I, class T>
IdPropertyMap<I, T> property_map_of(IdMap<I, T>& map) {
  return {&map};
}

inline auto vertices(const DefUseGraph& g) { return std::pair(g.nodes().begin(), g.nodes().end()); }
inline size_t num_vertices(const DefUseGraph& g) { return g.nodes().size(); }
inline std::pair<OutEdgeIterator, OutEdgeIterator> out_edges(NodeId n, const DefUseGraph& g) {
  return {OutEdgeIterator(g.graph(), n), OutEdgeIterator()};
}
inline std::pair<InEdgeIterator, InEdgeIterator> in_edges(NodeId n, const DefUseGraph& g) {
  return {InEdgeIterator(g.graph(), n), InEdgeIterator()};
}
inline size_t out_degree(NodeId n, const DefUseGraph& g) {
  const auto [begin, end] = out_edges(n, g);
  return static_cast<size_t>(std::distance(begin, end));
}
inline size_t in_degree(NodeId n, const DefUseGraph& g) {
  const auto [begin, end] = in_edges(n, g);
  return static_cast<size_t>(std::distance(begin, end));
}
inline size_t degree(NodeId n, const DefUseGraph& g) { return in_degree(n, g) + out_degree(n, g); }
inline auto adjacent_vertices(NodeId n, const DefUseGraph& g) {
  using Iterator = boost::adjacency_iterator_generator<DefUseGraph, NodeId, OutEdgeIterator>::type;
  const auto [begin, end] = out_edges(n, g);
  return std::pair(Iterator(begin, &g), Iterator(end, &g));
}
inline NodeId source(const DefUseEdge& edge, const DefUseGraph&) { return edge.from; }
inline NodeId target(const DefUseEdge& edge, const DefUseGraph&) { return edge.to; }
inline PositionMap get(boost::vertex_index_t, const DefUseGraph& g) { return {&g}; }
inline size_t get(boost::vertex_index_t, const DefUseGraph& g, NodeId n) { return g.position(n); }

}  // namespace shadowgraph

template <>
struct boost::graph_traits<shadowgraph::DefUseGraph> {
  struct traversal_category : bidirectional_graph_tag, adjacency_graph_tag, vertex_list_graph_tag {};
  using vertex_descriptor = shadowgraph::NodeId;
  using edge_descriptor = shadowgraph::DefUseEdge;
  using directed_category = bidirectional_tag;
  using edge_parallel_category = allow_parallel_edge_tag;
  using vertex_iterator = std::vector<shadowgraph::NodeId>::const_iterator;
  using out_edge_iterator = shadowgraph::OutEdgeIterator;
  using in_edge_iterator = shadowgraph::InEdgeIterator;
  using adjacency_iterator = boost::adjacency_iterator_generator<shadowgraph::DefUseGraph, shadowgraph::NodeId,
                                                                 shadowgraph::OutEdgeIterator>::type;
  using vertices_size_type = size_t;
  using edges_size_type = size_t;
  using degree_size_type = size_t;
  static shadowgraph::NodeId null_vertex() { return {}; }
};

template <>
struct boost::property_map<shadowgraph::DefUseGraph, boost::vertex_index_t> {
  using type = shadowgraph::PositionMap;
  using const_type = shadowgraph::PositionMap;
};
