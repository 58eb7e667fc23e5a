// What a function that is run a second time, in backward, would do wrong.
//
// A checkpoint() of PyTorch runs its whole function again, with the inputs that it was given. That is right if these hold
// what they held, and if nobody notices what the second run writes. Internal to passes.
#pragma once

#include <span>
#include <string>
#include <unordered_set>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

struct SecondRun {
  std::string obstacle;  // "aten::add_: writes to what is made outside"; "" if there is none
  NodeId at;             // the node that it is about
  // Made outside and written here, while nothing else that is computed here depends on them: running statistics, counts
  // of batches. A second run has to write to copies of them.
  std::unordered_set<StorageId> statistics;
};

// `nodes` are those of the function, in program order; of forward. Linear in them.
SecondRun second_run(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes);

// Checkpoints of a forward graph: calls of checkpoint() in the code that it becomes. Internal to passes/recompute.

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
