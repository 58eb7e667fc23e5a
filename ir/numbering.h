// Canonical numbers of what is alive in a graph: the numbers that the text form, JSON and messages show.
//
// Nodes are numbered in program order, values in the order in which their nodes produce them, storages, constants and
// user phases in the order of first appearance. What nothing alive refers to has no number and vanishes from the text:
// erased nodes, their values, storages that only those used. Regions keep their numbers, they are a record of what the
// program entered. Two graphs that print alike are numbered alike, however they were built or edited.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shadowgraph {

class Numbering {
 public:
  static constexpr uint32_t kNone = NodeId::kNone;

  // Linear. Tolerates broken graphs: ids out of range are skipped, a cycle in the node list ends the walk.
  static Numbering run(const Graph& graph);

  // kNone for what has no number, ids out of range included.
  uint32_t of(NodeId id) const { return at(nodes_, id.index); }
  uint32_t of(ValueId id) const { return at(values_, id.index); }
  uint32_t of(StorageId id) const { return at(storages_, id.index); }
  uint32_t of(ConstantId id) const { return at(constants_, id.index); }

  // By number.
  const std::vector<NodeId>& nodes() const { return node_order_; }
  const std::vector<ValueId>& values() const { return value_order_; }
  const std::vector<StorageId>& storages() const { return storage_order_; }
  const std::vector<ConstantId>& constants() const { return constant_order_; }
  // The operators and functions in use, built-ins left out, in order of first appearance.
  const std::vector<TargetId>& targets() const { return target_order_; }
  // For a target (built-ins included) whose name another target before it has too: 2, 3, ...; otherwise 1.
  uint32_t name_copy(TargetId id) const { return id.index < name_copies_.size() ? name_copies_[id.index] : 1; }
  // The node that the text takes for the birth of a storage when it says nothing: the first that has it as a result.
  NodeId first_node(StorageId id) const { return id.index < first_nodes_.size() ? first_nodes_[id.index] : NodeId(); }

 private:
  static uint32_t at(const std::vector<uint32_t>& numbers, uint32_t index) {
    return index < numbers.size() ? numbers[index] : kNone;
  }
  template <class I>
  static void number(std::vector<uint32_t>& numbers, std::vector<I>& order, I id);
  // False at a list that nests too deep: in a broken graph it may hold itself, and the walk must end.
  bool number_arguments(const Graph& graph, std::span<const Argument> arguments, int depth);
  bool number_results(const Graph& graph, NodeId node, std::span<const Argument> results, int depth);

  std::vector<uint32_t> nodes_, values_, storages_, constants_, name_copies_;
  std::vector<NodeId> node_order_;
  std::vector<ValueId> value_order_;
  std::vector<StorageId> storage_order_;
  std::vector<ConstantId> constant_order_;
  std::vector<TargetId> target_order_;
  std::vector<NodeId> first_nodes_;
};

}  // namespace shadowgraph
