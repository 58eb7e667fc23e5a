// Lists a node's strategies on a mesh of several axes: every combination of strategies on one axis that divides its
// tensors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/rules.h"

namespace shadowgraph {

// The tensors that a node takes and gives, in the order of for_each_input and for_each_output.
struct NodeTensors {
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  static NodeTensors of(const Graph& graph, NodeId node);
  size_t size() const { return operands.size() + results.size(); }
  ValueId operator[](size_t i) const { return i < operands.size() ? operands[i] : results[i - operands.size()]; }
};

struct MeshStrategy {
  std::vector<Layout> layouts;  // of operands, then results
  int64_t shares = 1;           // into how many equal parts the work is divided
};

// Returns each strategy once; of several that are equal, the first stays. The very first one is replicated on every
// axis.
std::vector<MeshStrategy> mesh_strategies(const Graph& graph, const NodeTensors& tensors,
                                          std::span<const AxisStrategy> axis, const DeviceMesh& mesh);

// Returns what sg::input and its like, sg::alias and the nodes at the end may do on one axis: nothing, or cut a
// dimension.
std::vector<AxisStrategy> builtin_strategies(const Graph& graph, NodeId node, const NodeTensors& tensors);

// A set of a node's tensors that have nothing to do with its others, such as one place of the lists of _foreach_add_.
struct NodePlace {
  std::vector<uint32_t> operands, results;  // which of the node's
};

// Puts tensors that some strategy cuts together into one place. All tensors that no strategy cuts form one more place,
// the last.
std::vector<NodePlace> places_of(const NodeTensors& tensors, std::span<const AxisStrategy> axis);
// Returns one place for each operand.
std::vector<NodePlace> places_of_output(const NodeTensors& tensors);
// Returns the strategies of one place; the first is replicated.
std::vector<AxisStrategy> strategies_at(std::span<const AxisStrategy> axis, const NodePlace& place);

}  // namespace shadowgraph
