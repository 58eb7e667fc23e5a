// Infers the composition of dimensions from a graph's views, and which values can be partial. By the rules' factors,
// [batch * sequence, hidden] between two views of [batch, sequence, hidden] is (batch sequence) hidden wherever it
// flows. Linear in the graph, whose nodes must not change meanwhile.
//
//     FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
//     analysis.splits(value, 0);                                   // {8}: of 8 * 512
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

class FactorAnalysis {
 public:
  static FactorAnalysis run(const Graph& graph, const ShardingRules& rules);

  // Returns additional positions at which a dimension may be split: each divides the next; excludes 1 and the size.
  std::span<const int64_t> splits(ValueId value, int64_t dim) const;

 private:
  friend class ShardingRules;
  class Finder;
  uint32_t find(uint32_t element) const;
  bool may_be_partial(ValueId value, PartialOp op) const;
  // Returns true if any of the operands that the strategy takes as partial can be partial.
  bool can_be_given(const AxisStrategy& strategy, std::span<const ValueId> operands) const;

  std::vector<uint32_t> first_of_value_;      // first element of a value's dimensions
  std::vector<uint32_t> first_of_node_;       // first element of the factors of a node's rule
  std::vector<uint32_t> parent_;              // union-find over elements
  std::vector<std::vector<int64_t>> splits_;  // by root
  std::vector<uint8_t> partial_;              // by value, a bit for each PartialOp
};

}  // namespace shadowgraph
