// A point of the search space: a plan with its schedule, lower bound, stages, and step time from layer costs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "parallel/plan/stage_split.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Throws an Error that says why if the plan's schedule does not exist for its sizes.
PipelineSchedule schedule_of(const TrainingPlan& plan, int64_t microbatches);

// Cache of schedules by size. Thread-safe. Schedules become periodic after a few micro-batches per rank, so the time of
// a long one is extrapolated from two short ones.
class PlanSchedules {
 public:
  struct Entry {
    PipelineSchedule schedule;                // with reductions and transfers; the longer of the two
    std::optional<PipelineSchedule> shorter;  // with one micro-batch per rank less; empty: `schedule` is the full one
    std::vector<InFlight> in_flight;          // by stage
  };
  // The full schedule of a plan, or a shortened pair to extrapolate from. Returns nullptr if there is no such schedule.
  const Entry* full(const TrainingPlan& plan) { return of(plan, plan.microbatches, false); }
  const Entry* shortened(const TrainingPlan& plan);

 private:
  const Entry* of(const TrainingPlan& plan, int64_t microbatches, bool shorter);

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

// Bytes of a stage's optimizer state offloaded to CPU, per replica; 0 without offloading.
int64_t state_on_host(const StageCosts& stage, Replicas replicas);

// Host memory available per device, in bytes; INT64_MAX if unknown.
int64_t host_memory_of(const DeviceSpec& device);

// Ranks that share a stage, and the rank distance of pipeline neighbors. Tensor parallelism is innermost.
Replicas replicas_of(const TrainingPlan& plan, const ClusterRequest& request, int64_t bucket);
int64_t rank_stride(const TrainingPlan& plan);
// Computes SimulatedPlan::other_streams. `outside` and `weights`: bytes and elements of parameters outside all layers.
int64_t other_streams(const TrainingPlan& plan, const ClusterRequest& request, int64_t outside, int64_t weights);

struct Estimate {
  const RecomputeLadder* ladder = nullptr;  // that the stages refer to
  std::vector<StageUnits> stages;
  double seconds = 0;
  int64_t bytes = 0;  // of the rank with the highest peak
};

class Candidate {
 public:
  // `ladders` and `request` must outlive the candidate.
  Candidate(TrainingPlan plan, const RecomputeLadders& ladders, const ClusterRequest& request);

  const TrainingPlan& plan() const { return plan_; }
  // Lower bound of the step time over all splits into stages. Estimating with a memory limit may raise it.
  double bound() const { return bound_; }
  // Returns nullptr if there is no schedule, no split fits in `memory` bytes, or the step takes `enough` seconds or
  // more. The result is cached.
  const Estimate* estimate(PlanSchedules& schedules, int64_t memory, double enough);
  // Estimates with another memory limit, without caching. `spend_spare`: use leftover memory to recompute fewer layers.
  std::optional<Estimate> estimate_within(PlanSchedules& schedules, int64_t memory, double enough,
                                          bool spend_spare = true);
  // Replaces the cached estimate by a simulated result; empty: the plan does not fit at any recompute level.
  void learn(std::optional<Estimate> known) {
    fits_ = known.has_value();
    found_ = std::move(known);
  }
  const Estimate* found() const { return found_ ? &*found_ : nullptr; }  // cached by estimate() or learn()
  // False once no split was found to fit.
  bool fits() const { return fits_; }
  // Returns the plan with the stages of an estimate.
  TrainingPlan with(const Estimate& estimate) const;

 private:
  std::vector<int64_t> shares(const RecomputeLadder& ladder, const PipelineSchedule& schedule,
                              const SplitLimits& limits, int64_t memory) const;
  int64_t other_streams() const;
  double min_compute_seconds(const RecomputeLadder& ladder, const SplitLimits& limits) const;
  bool fits_host(const RecomputeLadder& ladder, const PipelineSchedule& schedule, const std::vector<StageUnits>& stages,
                 const SplitLimits& limits) const;
  double bound_of(const Estimate& cut, const PipelineSchedule& schedule) const;
  double seconds_of(const PipelineRun& run, const PlanSchedules::Entry& entry) const;

  TrainingPlan plan_;
  const RecomputeLadders* ladders_;
  const ClusterRequest* request_;
  double bound_ = 0;
  bool fits_ = true;
  std::optional<Estimate> found_;
};

}  // namespace shadowgraph
