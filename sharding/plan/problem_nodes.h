// Finds nodes by name, and groups identical nodes, for the assignment problem.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/rules.h"
#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {

// Returns placeholders whose name matches the glob, or else the node "n329" of the text; in program order, or empty.
std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name);

// Groups identical nodes of a program into classes, each of which is decided by one variable.
//
// Repeated layers have the same calls in the same places. Two nodes are in one class if
//   - they call the same operator with the same constants on tensors of the same types, in the same phase, and
//   - they have the same position among such calls in modules whose paths differ only by numbers ("layers.3.mlp" and
//     "layers.17.mlp").
// A backward node belongs to the module of its forward node. Nodes outside modules (an optimizer's) are in one class if
// their operands are; such chains begin at parameters, whose names have paths.
//
// Folding restricts the search space but is always valid: nodes of a class have the same strategies and costs.
struct NodeClasses {
  IdMap<NodeId, uint32_t> class_of;
  uint32_t count = 0;

  // With `fold` false, every node is a separate class.
  static NodeClasses of(const Graph& graph, bool fold);
};

// Returns "layers.#.mlp" for "layers.3.mlp", "layer_#.norm_1" for "layer_3.norm_1" (only the first trailing number).
std::string without_numbers(std::string_view path);

struct MeshStrategy {
  std::vector<Layout> layouts;  // of operands, then results
  int64_t shares = 1;           // number of equal parts that the work is divided into
};

// Returns the distinct strategies, in order of first occurrence; the first is replicated on every axis.
std::vector<MeshStrategy> mesh_strategies(const Graph& graph, const NodeTensors& tensors,
                                          std::span<const AxisStrategy> axis, const DeviceMesh& mesh);

// Returns the strategies of placeholders, sg::alias and outputs on one axis: replicate, or shard a dimension.
std::vector<AxisStrategy> builtin_strategies(const Graph& graph, NodeId node, const NodeTensors& tensors);

}  // namespace shadowgraph
