// The tensors of a node, and their dimensions as a layout cuts them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/layout.h"

namespace shadowgraph {

struct DimensionCuts {
  std::vector<int64_t> expanded;           // each dimension as its factors: between cuts, and one for each cut
  std::vector<int64_t> dimension_of_axis;  // in `expanded`, by mesh axis; -1: does not cut
  std::vector<int64_t> local;              // sizes of a part

  // Returns nothing if an axis does not divide its dimension.
  static std::optional<DimensionCuts> of(std::span<const int64_t> sizes, const Layout& layout, const DeviceMesh& mesh);
};

// Returns how many stretches a dimension has, as the other axes leave it. Each stretch has a piece of every device of
// `axis`.
int64_t stretches(const Layout& layout, size_t axis, const DeviceMesh& mesh);

// Returns in how many parts a tensor is: the product of the axes that cut it.
int64_t parts_of(const Layout& layout, const DeviceMesh& mesh);

// The tensors that a node takes and gives, in the order of for_each_input and for_each_output.
struct NodeTensors {
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  static NodeTensors of(const Graph& graph, NodeId node);
  size_t size() const { return operands.size() + results.size(); }
  ValueId operator[](size_t i) const { return i < operands.size() ? operands[i] : results[i - operands.size()]; }
};

}  // namespace shadowgraph
