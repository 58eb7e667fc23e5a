// The nodes of a graph in program order: `for (NodeId n : graph.nodes())`, or against it: graph.nodes_reversed(). The
// current node may be erased, or moved, while walking; a node inserted right behind it is not visited.
//
// A list is followed link by link, and a processor cannot fetch a node before it has read the one before. Most nodes
// lie in the arena in program order, so the walk asks for the memory a few nodes ahead. One of a million nodes then
// costs 7 ns, not 41 (docs/figures.md#graphs-edits-and-passes).
#pragma once

#include <cstddef>
#include <iterator>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/arena.h"
#include "shadowgraph/graph/ids.h"
#include "shadowgraph/graph/types.h"

namespace SHADOWGRAPH_API shadowgraph {

template <bool kForward>
class NodeWalk {
 public:
  class Iterator {
   public:
    using value_type = NodeId;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using pointer = const NodeId*;
    using reference = NodeId;
    Iterator() = default;
    Iterator(const Arena<Node>* nodes, NodeId at) : nodes_(nodes), at_(at), next_(after(at)) {}
    NodeId operator*() const { return at_; }
    Iterator& operator++() {
      at_ = next_;
      next_ = after(at_);
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++*this;
      return old;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    static constexpr uint32_t kAhead = 16;
    NodeId after(NodeId id) const {
      if (!id.valid()) return {};
      // Below 0 it wraps around to what is beyond the end.
      const uint32_t soon = kForward ? id.index + kAhead : id.index - kAhead;
      if (soon < nodes_->size()) __builtin_prefetch(&(*nodes_)[soon]);
      const Node& node = (*nodes_)[id.index];
      return kForward ? node.next : node.previous;
    }
    const Arena<Node>* nodes_ = nullptr;
    NodeId at_;
    NodeId next_;
  };
  NodeWalk(const Arena<Node>& nodes, NodeId start) : nodes_(&nodes), start_(start) {}
  Iterator begin() const { return {nodes_, start_}; }
  Iterator end() const { return {nodes_, NodeId()}; }

 private:
  const Arena<Node>* nodes_;
  NodeId start_;
};

using NodeRange = NodeWalk<true>;
using ReverseNodeRange = NodeWalk<false>;

}  // namespace shadowgraph
