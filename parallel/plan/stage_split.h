// Splits a chain of layers into pipeline stages, with recompute levels chosen to fit in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/plan/layer_chain.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Layer costs of one layout if every layer uses this recompute level. Activations that are not recomputed are kept on
// the device, or offloaded to CPU.
struct RecomputeLevel {
  Recompute what = Recompute::kNone;
  bool on_host = false;
  std::vector<std::string> keeps = {};  // kept results of kCurve
  std::shared_ptr<const LayerChain> chain;
};

// Recompute levels sorted by the memory kept between forward and backward, largest first. Each level takes longer than
// the one before, keeps less, and costs more time per byte saved.
class RecomputeLadder {
 public:
  RecomputeLadder() = default;
  // Selects the cost-effective levels among `allowed` (empty: all). The first level, which keeps everything, is always
  // included. `exposed`: fraction of host-copy time not hidden when every layer is offloaded; nullopt forbids offload.
  explicit RecomputeLadder(std::vector<RecomputeLevel> levels, const std::vector<Recompute>& allowed = {},
                           std::optional<double> exposed = std::nullopt);

  const LayerChain& kept() const { return *levels_.front().chain; }
  const LayerChain& most() const { return *levels_.back().chain; }
  const std::vector<RecomputeLevel>& levels() const { return levels_; }
  int64_t units() const { return kept().size(); }

 private:
  std::vector<RecomputeLevel> levels_;
};

// Micro-batches in flight for a stage at its rank's memory peak.
struct InFlight {
  int64_t gradients = 0;  // after forward, before backward
  int64_t weights = 0;    // after input gradient, before weight gradient; maximum
};

// Alternative recompute ladders; the best one is chosen per plan. With offload no single ladder is best, since kernels
// can hide the copies of a few layers, but not of all.
struct RecomputeLadders {
  RecomputeLadders(const std::vector<RecomputeLevel>& levels, const std::vector<Recompute>& allowed, bool host_allowed);
  const LayerChain& kept() const { return ladders.front().kept(); }
  std::vector<RecomputeLadder> ladders;
};

// Units first to last - 1. A recompute step moves one unit to the next level: first each unit in order takes its first
// step, then each takes its second. So a stage uses at most two adjacent levels, the higher one first.
struct StageUnits {
  int64_t first = 0, last = 0, recompute_steps = 0;
};
// Steps after which every unit is at the last level.
int64_t max_recompute_steps(const RecomputeLadder& ladder, int64_t first, int64_t last);
const RecomputeLevel& level_of(const RecomputeLadder& ladder, const StageUnits& stage, int64_t unit);
StageCosts figures_of(const RecomputeLadder& ladder, const StageUnits& stage);
int64_t transient_of(const RecomputeLadder& ladder, const StageUnits& stage);
double seconds_of(const RecomputeLadder& ladder, const StageUnits& stage);

struct SplitLimits {
  std::vector<InFlight> in_flight;  // by stage
  std::vector<int64_t> memory;      // by stage: bytes
  int64_t stages_per_rank = 1;      // that share the transient bytes of a rank
  Replicas replicas;
};

// Bytes of a stage offloaded to CPU at its peak.
int64_t host_bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight);

// Device bytes of a stage at its peak.
int64_t bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight, const SplitLimits& limits);

// Returns the split whose slowest stage is fastest, with as few recompute steps per stage as its memory allows; empty
// if no split fits. Both time and bytes grow with a stage, so for a time limit the longest possible stages are best.
// The lowest feasible limit is found by bisection.
std::optional<std::vector<StageUnits>> split(const RecomputeLadder& ladder, const SplitLimits& limits);

// Uses a rank's leftover memory to keep more activations instead of recomputing them. split() assigns each stage a
// fixed share of its rank's memory. If layers are large, each leftover is too small for one more of them, but all
// together are not. Layers that save the most time per byte come first.
void keep_more(const RecomputeLadder& ladder, const SplitLimits& limits, const PipelineSchedule& schedule,
               std::vector<StageUnits>& stages);

}  // namespace shadowgraph
