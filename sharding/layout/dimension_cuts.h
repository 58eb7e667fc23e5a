// The tensors of a node, and their dimensions split into factors by a layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/layout.h"

namespace shadowgraph {

struct DimensionCuts {
  std::vector<int64_t> expanded;           // each dimension as its factors: one per axis that shards it, and the rest
  std::vector<int64_t> dimension_of_axis;  // index in `expanded`, by mesh axis; -1: not sharded
  std::vector<int64_t> local;              // local sizes

  // Returns nullopt if an axis does not divide its dimension.
  static std::optional<DimensionCuts> of(std::span<const int64_t> sizes, const Layout& layout, const DeviceMesh& mesh);
};

// Returns the number of contiguous stretches of a sharded dimension, given the other axes. Every device of `axis` has a
// piece of each stretch.
int64_t stretches(const Layout& layout, size_t axis, const DeviceMesh& mesh);

// Returns the number of shards of a tensor: the product of the axes that shard it.
int64_t parts_of(const Layout& layout, const DeviceMesh& mesh);

// The operands and results of a node, in the order of for_each_input and for_each_output.
struct NodeTensors {
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  static NodeTensors of(const Graph& graph, NodeId node);
  size_t size() const { return operands.size() + results.size(); }
  ValueId operator[](size_t i) const { return i < operands.size() ? operands[i] : results[i - operands.size()]; }
};

}  // namespace shadowgraph
