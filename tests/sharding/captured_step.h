// Captures a training step of a tiny built-in model in float64, with real tensors for all of its inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "models/registry.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/simulate.h"

namespace shadowgraph {

struct CapturedStep {
  Graph graph;
  std::vector<at::Tensor> inputs;  // unsharded, in the order of placeholders
};

enum class StepOptimizer { kSgd, kAdamW, kFusedAdamW, kFusedAdam, kFusedSgd, kForeachAdamW };

// Changes single-precision parts of models to float64, so that comparisons are not affected by rounding.
void compute_in_doubles(Graph& graph);

// Captures the second step, in which optimizer state exists, or with warmup_steps 0 the first, which creates it.
CapturedStep capture_step(const std::function<models::BuiltModel()>& build, StepOptimizer kind, int warmup_steps = 1);
CapturedStep capture_step(const std::string& name, StepOptimizer kind, int64_t batch, int64_t seq = 0,
                          int warmup_steps = 1);

// Three layers of DeepSeek-V3 in bfloat16, on a simulated GPU, with SGD.
Graph capture_tiny_deepseek();

// Results of the step on a single device.
struct WholeRun {
  ReplayResult result;
  std::vector<at::Tensor> inputs;  // inputs after the step
};
WholeRun run_whole(const CapturedStep& step);

double difference(const at::Tensor& a, const at::Tensor& b);

// Returns the largest difference, relative to the largest element of each tensor.
double worst_difference(const WholeRun& whole, const SimulatedRun& simulated);

// Debugging aid for a failing plan: returns the first node whose result differs from the single-device run.
std::string first_wrong_node(const CapturedStep& step, const GraphLayouts& plan, const ApplyOptions& options = {});

}  // namespace shadowgraph
