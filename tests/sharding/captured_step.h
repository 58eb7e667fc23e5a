// A training step of a built-in model, tiny and in doubles, with real tensors for all that it is given.
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
  std::vector<at::Tensor> inputs;  // whole, in order of placeholders
};

enum class StepOptimizer { kSgd, kAdamW, kFusedAdamW, kFusedAdam, kFusedSgd, kForeachAdamW };

// Models that compute some things in single precision do so in doubles: what is compared is the program, not its
// rounding.
void compute_in_doubles(Graph& graph);

// The second step, which finds the optimizer's state; with warmup_steps 0 the first, which makes it.
CapturedStep capture_step(const std::function<models::BuiltModel()>& build, StepOptimizer kind, int warmup_steps = 1);
CapturedStep capture_step(const std::string& name, StepOptimizer kind, int64_t batch, int64_t seq = 0,
                          int warmup_steps = 1);

// Three layers of DeepSeek-V3 in bfloat16, on a pretended GPU, with SGD.
Graph capture_tiny_deepseek();

// What one device alone makes of it.
struct WholeRun {
  ReplayResult result;
  std::vector<at::Tensor> inputs;  // afterwards
};
WholeRun run_whole(const CapturedStep& step);

double difference(const at::Tensor& a, const at::Tensor& b);

// Relative to the largest element of each tensor. Returns the worst.
double worst_difference(const WholeRun& whole, const SimulatedRun& simulated);

// For a plan that fails: the first node whose result is another than on one device.
std::string first_wrong_node(const CapturedStep& step, const GraphLayouts& plan, const ApplyOptions& options = {});

}  // namespace shadowgraph
