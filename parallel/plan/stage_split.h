// Cuts a chain of layers into the stages of a pipeline.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/plan/layer_chain.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// The chain of one way to cut a micro-batch where so much of each layer is computed again. The rest waits for backward on
// the device, or on the host.
struct RecomputeLevel {
  Recompute what = Recompute::kNothing;
  bool on_host = false;
  std::vector<std::string> keeps = {};  // of kCurve
  std::shared_ptr<const LayerChain> chain;
};

// Levels by what they hold between forward and backward, all first. Each takes longer than the one before, holds less,
// and costs more seconds for a byte that it saves.
class RecomputeLadder {
 public:
  RecomputeLadder() = default;
  // Those of `levels` that are allowed and worth it. The first one always is: all is kept where it is. No `allowed`: all.
  // `exposed`: of what copies to the host cost where all layers are there, so much counts; nothing: no layer may be.
  explicit RecomputeLadder(std::vector<RecomputeLevel> levels, const std::vector<Recompute>& allowed = {},
                           std::optional<double> exposed = std::nullopt);

  const LayerChain& kept() const { return *levels_.front().chain; }
  const LayerChain& most() const { return *levels_.back().chain; }
  const std::vector<RecomputeLevel>& levels() const { return levels_; }
  int64_t units() const { return kept().size(); }

 private:
  std::vector<RecomputeLevel> levels_;
};

// Micro-batches of a stage when its rank holds most.
struct InFlight {
  int64_t gradients = 0;  // between forward and backward
  int64_t weights = 0;    // between the input's gradient and the weights', at most
};

// Ways down from keeping all, one of which serves. With copies to the host no single one is best: kernels of other layers
// hide those of a few, not those of all.
struct RecomputeLadders {
  RecomputeLadders(const std::vector<RecomputeLevel>& levels, const std::vector<Recompute>& allowed, bool host_allowed);
  const LayerChain& kept() const { return ladders.front().kept(); }
  std::vector<RecomputeLadder> ladders;
};

// Units first to last - 1. `recompute_steps` counts steps from level to level: first each unit takes the first step, one by one, then
// each the second. So at most two levels that follow each other are in a stage, the higher one first.
struct StageUnits {
  int64_t first = 0, last = 0, recompute_steps = 0;
};
// With which every unit is at the highest level.
int64_t max_recompute_steps(const RecomputeLadder& ladder, int64_t first, int64_t last);
const RecomputeLevel& level_of(const RecomputeLadder& ladder, const StageUnits& stage, int64_t unit);
StageFigures figures_of(const RecomputeLadder& ladder, const StageUnits& stage);
int64_t passing_of(const RecomputeLadder& ladder, const StageUnits& stage);
double seconds_of(const RecomputeLadder& ladder, const StageUnits& stage);

struct SplitLimits {
  std::vector<InFlight> in_flight;  // by stage
  std::vector<int64_t> memory;      // by stage: bytes
  int64_t stages_per_rank = 1;      // that share a rank's passing bytes
  Replicas replicas;
};

// The bytes of a stage that wait on the host at its peak.
int64_t host_bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight);

// The bytes of a stage at its peak.
int64_t bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight, const SplitLimits& limits);

// The cut whose slowest stage is quickest, where each stage takes as few steps as its memory allows. Nothing:
// no cut fits. Both time and bytes grow with a stage, so the longest stages that stay under a time cut best. The least
// such time is found by bisection.
std::optional<std::vector<StageUnits>> split(const RecomputeLadder& ladder, const SplitLimits& limits);

// Spends what the stages of a rank leave of its memory.
// split() gives each stage of a rank a share of its memory beforehand. Where layers are few and large, each share is too
// small for one more of them, while all together are not. Here they go to layers that then need not be computed again:
// those first that save most seconds for a byte.
void keep_more(const RecomputeLadder& ladder, const SplitLimits& limits, const PipelineSchedule& schedule,
               std::vector<StageUnits>& stages);

}  // namespace shadowgraph
