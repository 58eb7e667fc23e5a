// Layouts for all tensors of a captured step.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

// How a node takes and gives its tensors, in the order of for_each_input and for_each_output, values that are no tensors
// left out.
struct NodeLayouts {
  std::vector<Layout> operands;
  std::vector<Layout> results;
};

// Where a result and an operand that uses it differ, the tensor is redistributed before the first node that needs it so;
// the copy serves all nodes of the same phase that need that layout, as long as nothing writes to the tensor, and dies
// after the last of them. Operands that a node writes to, and views whose memory is written to while they are in use,
// have the layout of the tensor that is meant: no copy can stand for them.
struct ShardingPlan {
  DeviceMesh mesh;
  IdMap<NodeId, NodeLayouts> nodes;  // sg::input and its like have results, sg::output operands
};

}  // namespace shadowgraph
