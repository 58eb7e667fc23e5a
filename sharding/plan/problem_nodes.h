// Finds nodes by the names that people give them in pins and questions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/rules.h"
#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {

// Returns the placeholders whose name matches ("*" and "?" as in file names), or else the one node "n329" of the
// graph's text. They come in program order; there may be none.
std::vector<NodeId> nodes_named(const Graph& graph, const std::string& name);

// Finds which nodes of a program are alike, so that one variable decides over all of them.
//
// Layers that repeat have the same calls in the same places. Two nodes are of one class if
//   - they call the same operator with the same constants on tensors of the same types, in the same phase, and
//   - they are the same one of such calls in modules whose paths differ by numbers alone ("layers.3.mlp" and
//     "layers.17.mlp").
// A backward node counts for the module of its forward node. Nodes outside modules (an optimizer's) are alike if their
// operands are: such a chain begins at a parameter, whose name has a path.
//
// Folding may only narrow the choice. It is never wrong: nodes of a class have the same strategies and the same costs.

struct NodeClasses {
  IdMap<NodeId, uint32_t> class_of;
  uint32_t count = 0;

  // Without `fold` every node is a class of its own.
  static NodeClasses of(const Graph& graph, bool fold);
};

// "layers.#.mlp" for "layers.3.mlp", "layer_#.norm_1" for "layer_3.norm_1": where a number ends a name, the first counts.
std::string without_numbers(std::string_view path);

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
