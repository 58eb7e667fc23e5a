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
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct NodeClasses {
  IdMap<NodeId, uint32_t> class_of;
  uint32_t count = 0;

  // Without `fold` every node is a class of its own.
  static NodeClasses of(const Graph& graph, bool fold);
};

// "layers.#.mlp" for "layers.3.mlp", "layer_#.norm_1" for "layer_3.norm_1": where a number ends a name, the first counts.
std::string without_numbers(std::string_view path);

}  // namespace shadowgraph
