// Copies of graphs, whole or in part, and one graph put into another.
//
//     Graph before = clone(graph);                          // same ids: an IdMap of one is good for the other
//     const ValueId inputs[] = {x, weight};
//     auto outputs = splice(graph, position, block, inputs);  // the block's nodes, now before `position`
//     graph.replace_all_uses_with(old, outputs[0]);
//
// Tensor constants are shared, not copied: nobody writes them. torch.fx: Graph.graph_copy, Graph.node_copy; nativert:
// Graph::insertGraph.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// Everything, erased nodes' holes included, so that all ids mean the same in both. Costs a copy of the memory.
Graph clone(const Graph& graph);

// Copies the nodes of `piece` before `position` of `into` (invalid: at the end, before sg::output and sg::gradient).
// Its sg::input, sg::parameter and sg::buffer placeholders stand for `inputs`, in program order. Returns what the piece
// outputs, in order; an invalid id where it outputs None or nothing tensor-like.
//
// Regions of the piece come under that of the node at `position`; sg::constant nodes go to the other placeholders. What
// aliases a placeholder aliases the value given for it. Storages given live on as long as the new nodes need them.
//
// Throws GraphEditError, before any change, if
//
//   - the number of inputs differs, or the dtype, sizes or device of one (strides and offset, too, where the piece
//     makes views of it);
//   - placeholders that share a storage are given values that do not;
//   - an input is not made before `position`;
//   - the piece has sg::gradient nodes.
std::vector<ValueId> splice(Graph& into, NodeId position, const Graph& piece, std::span<const ValueId> inputs);

// A piece cut out: a graph of its own, and what of the graph around it goes in and comes out.
struct Subgraph {
  Graph graph;                   // inputs as sg::input, then the nodes, then sg::output
  std::vector<ValueId> inputs;   // values of the graph around, in order of first use, each once
  std::vector<ValueId> outputs;  // values of the nodes that others use, in the order they are made
};

// The `nodes` (in program order, none of them sg::) as a graph of their own; `graph` is not changed. Tensors that share
// a storage share one in the piece. Linear in the nodes.
Subgraph extract(const Graph& graph, std::span<const NodeId> nodes);

// Copies nodes one by one from one graph into another, or within one.
//
//     NodeCopier copier(from, into);
//     copier.bind(from_value, into_value);       // operands that are not copied
//     const NodeId copy = copier.copy(node, position);
class NodeCopier {
 public:
  // Regions other than the root come under `region`, which also stands for the root.
  NodeCopier(const Graph& from, Graph& into, RegionId region = Graph::kRootRegion);

  // Before many are copied.
  void reserve(size_t nodes) {
    nodes_.reserve(nodes);
    values_.reserve(nodes);
    storages_.reserve(nodes);
  }
  // What reads `from` will read `to`, what lives in the storage of the one will live in that of the other. Throws
  // GraphEditError if that storage stands for another one already.
  void bind(ValueId from, ValueId to);
  // What lies in the region `from` will lie in `to`.
  void bind(RegionId from, RegionId to) { regions_[from] = to; }
  // Copies all of a node except what refers to nodes and values that are not copied. Such are the forward link, and
  // tensors saved from elsewhere that finish() does not find. Deaths of bound storages are not copied. Throws
  // GraphEditError if an operand is neither bound nor made by a node copied before. Nothing else is checked.
  NodeId copy(NodeId node, NodeId position);
  // Call at the end: saved tensors that were made later.
  void finish();

  // Invalid for what was neither bound nor copied.
  ValueId value(ValueId from) const {
    const auto found = values_.find(from);
    return found == values_.end() ? ValueId() : found->second;
  }
  NodeId node(NodeId from) const {
    const auto found = nodes_.find(from);
    return found == nodes_.end() ? NodeId() : found->second;
  }

 private:
  struct HomeOfStorage {
    StorageId storage;
    int64_t shift = 0;  // of offsets
    bool bound = false;
  };
  RegionId region(RegionId from);
  Argument copy_argument(const Argument& from, bool tolerant);
  Argument copy_result(const Argument& from, NodeId producer);
  void copy_saved(NodeId from, NodeId to);

  const Graph& from_;
  Graph& into_;
  // Sized by what is copied, not by the graph: many small pieces may come out of a large one.
  std::unordered_map<TargetId, TargetId> targets_;
  std::unordered_map<RegionId, RegionId> regions_;
  std::unordered_map<ConstantId, ConstantId> constants_;
  std::unordered_map<NodeId, NodeId> nodes_;
  std::unordered_map<ValueId, ValueId> values_;
  std::unordered_map<StorageId, HomeOfStorage> storages_;
  std::vector<NodeId> unfinished_;  // whose saved tensors were not all there
};

}  // namespace shadowgraph
