// Checks whether a function can be recomputed in backward, and marks checkpoints in forward graphs.
//
// PyTorch's checkpoint() runs its whole function again with the original inputs. That is correct if the inputs still
// have the same contents, and if writes of the second run have no effect elsewhere. Internal to passes.
#pragma once

#include <span>
#include <string>
#include <unordered_set>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

struct RecomputeCheck {
  std::string obstacle;  // "aten::add_: writes to a tensor from outside"; "" if there is none
  NodeId at;             // the node with the obstacle
  // Storages from outside that are written here but affect nothing else computed here. Recompute must write to copies.
  std::unordered_set<StorageId> statistics;
};

// `nodes` are the forward nodes of the function, in program order. Linear in them.
RecomputeCheck check_recompute(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes);

// Checkpoints of a forward graph become calls of checkpoint() in emitted code. Internal to passes/recompute.

// Returns whether the graph is forward only: it has neither a backward nor an optimizer step.
bool is_forward_alone(const Graph& graph);
// Returns whether some output requires a gradient, so that autograd would run a backward.
bool has_gradients(const Graph& graph);

struct MarkedSegments {
  CheckpointResult result;
  std::vector<CheckpointSegment> segments;  // the given segments that became checkpoints
};
// checkpoint_segments() for a forward graph.
MarkedSegments mark_segments(Graph& graph, std::span<const CheckpointSegment> segments);

// Bytes of storages that nodes produce and save for backward.
int64_t bytes_kept_for_backward(const Graph& graph);

}  // namespace shadowgraph
