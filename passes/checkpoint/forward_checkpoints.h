// Checkpoints of a forward graph: calls of checkpoint() in the code that it becomes. Internal to passes/checkpoint.
#pragma once

#include <span>

#include "shadowgraph/passes/checkpoint.h"

namespace shadowgraph {

// Whether autograd has still to run the backward: there is neither a backward nor an optimizer step in the graph.
bool is_forward_alone(const Graph& graph);
// Whether it would run one: some output has a gradient.
bool has_gradients(const Graph& graph);

struct MarkedSegments {
  CheckpointResult result;
  std::vector<CheckpointSegment> segments;  // of those given: that are checkpoints now
};
// checkpoint_segments() of such a graph.
MarkedSegments mark_segments(Graph& graph, std::span<const CheckpointSegment> segments);

// Bytes that nodes save for backward, of storages that they make.
int64_t bytes_kept_for_backward(const Graph& graph);

}  // namespace shadowgraph
