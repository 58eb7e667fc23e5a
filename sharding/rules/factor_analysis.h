// Says what the dimensions of a graph's values are made of, as far as its views tell, and which values can be partial
// at all. By the rules' factors, [batch * sequence, hidden] between two views of [batch, sequence, hidden] is (batch
// sequence) hidden wherever it flows. Linear in the graph, whose nodes must not change meanwhile.
//
//     FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
//     analysis.splits(value, 0);                                   // {8}: of 8 * 512
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

class FactorAnalysis {
 public:
  static FactorAnalysis run(const Graph& graph, const ShardingRules& rules);

  // Where a dimension may be cut besides at 1: each a multiple of the one before, none 1 or all of it.
  std::span<const int64_t> splits(ValueId value, int64_t dim) const;

 private:
  friend class ShardingRules;
  class Finder;
  uint32_t find(uint32_t element) const;
  bool may_be_partial(ValueId value, PartialOp op) const;
  // Says whether any of the operands that the strategy takes as partial can be.
  bool can_be_given(const AxisStrategy& strategy, std::span<const ValueId> operands) const;

  std::vector<uint32_t> first_of_value_;      // elements of dimensions, by value
  std::vector<uint32_t> first_of_node_;       // elements of the factors of its rule, by node
  std::vector<uint32_t> parent_;              // of elements that are one
  std::vector<std::vector<int64_t>> splits_;  // of roots
  std::vector<uint8_t> partial_;              // by value, a bit for each PartialOp
};

}  // namespace shadowgraph
