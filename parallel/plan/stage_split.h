// Cuts a chain of layers into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/plan/layer_chain.h"
#include "shadowgraph/parallel/replicas.h"

namespace shadowgraph {

// The chain of one way to cut a micro-batch: activations kept, and computed again.
struct LayoutChains {
  LayerChain kept, again;
};

// Micro-batches of a stage when its rank holds most.
struct Between {
  int64_t gradients = 0;  // between forward and backward
  int64_t weights = 0;    // between the input's gradient and the weights', at most
};

// Units first to last - 1, of which the first `again` are computed again.
struct ChainStage {
  int64_t first = 0, last = 0, again = 0;
};
StageFigures figures_of(const LayoutChains& chains, const ChainStage& stage);
int64_t passing_of(const LayoutChains& chains, const ChainStage& stage);
double seconds_of(const LayoutChains& chains, const ChainStage& stage);

struct SplitLimits {
  std::vector<Between> between;  // by stage
  std::vector<int64_t> memory;   // by stage: bytes
  int64_t stages_per_rank = 1;   // that share a rank's passing bytes
  Replicas replicas;
};

// The bytes of a stage at its peak.
int64_t bytes_of(const LayoutChains& chains, const ChainStage& stage, Between between, const SplitLimits& limits);

// The cut whose slowest stage is quickest, where each stage computes again as few layers as its memory allows. Nothing:
// no cut fits. Both time and bytes grow with a stage, so the longest stages that stay under a time cut best. The least
// such time is found by bisection.
std::optional<std::vector<ChainStage>> split(const LayoutChains& chains, const SplitLimits& limits);

}  // namespace shadowgraph
