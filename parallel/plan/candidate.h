// One point of the space of plans: its schedule, a bound of its seconds, its stages, what a step takes by layers' figures.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "parallel/plan/stage_split.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Schedules by size, for several threads. Beyond a few micro-batches for each rank all of them repeat themselves, so two short ones tell what
// a long one takes.
class PlanSchedules {
 public:
  struct Entry {
    PipelineSchedule schedule;                // with sums and transfers; the longer of two
    std::optional<PipelineSchedule> shorter;  // by one micro-batch for each rank; nothing: `schedule` is the plan's own
    std::vector<InFlight> in_flight;          // by stage
  };
  // nullptr: there is no such schedule. The plan's own, or those that stand for it.
  const Entry* full(const TrainingPlan& plan) { return of(plan, plan.microbatches, false); }
  const Entry* shortened(const TrainingPlan& plan);

 private:
  const Entry* of(const TrainingPlan& plan, int64_t microbatches, bool shorter);

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

// Bytes of the optimizer's state of a stage of one replica, where that is on the host.
int64_t state_on_host(const StageFigures& stage, Replicas replicas);

// Bytes of the host for each device; as much as one likes where it is unknown.
int64_t host_memory_of(const DeviceSpec& device);

// Ranks that share a stage, and how far apart neighbours of a pipeline are, as tensor parallel is innermost.
Replicas replicas_of(const TrainingPlan& plan, const ClusterRequest& request, int64_t bucket);
int64_t ranks_apart(const TrainingPlan& plan);
// Bytes of SimulatedPlan::other_streams, where `outside` bytes of parameters of `weights` elements are in no layer.
int64_t other_streams(const TrainingPlan& plan, const ClusterRequest& request, int64_t outside, int64_t weights);

struct Estimate {
  const RecomputeLadder* ladder = nullptr;  // of which the stages are
  std::vector<StageUnits> stages;
  double seconds = 0;
  int64_t bytes = 0;  // of the fullest rank
};

class Candidate {
 public:
  // The latter two outlive it.
  Candidate(TrainingPlan plan, const RecomputeLadders& ways, const ClusterRequest& request);

  const TrainingPlan& plan() const { return plan_; }
  // Seconds that no cut into stages brings it below. It rises once memory has been looked at.
  double bound() const { return bound_; }
  // Nothing: it has no schedule, no cut of it fits into `memory` bytes, or it takes `enough` seconds or more. What is
  // found without cutting memory short is kept, and costs nothing the next time.
  const Estimate* estimate(PlanSchedules& schedules, int64_t memory, double enough);
  // The same for less memory than the request has; `spend_spare`: what stages of a rank leave goes to kept layers.
  std::optional<Estimate> estimate_within(PlanSchedules& schedules, int64_t memory, double enough,
                                          bool spend_spare = true);
  // What a simulation says in place of estimate(); nothing: the plan is too large, whatever is computed again.
  void learn(std::optional<Estimate> known) {
    fits_ = known.has_value();
    found_ = std::move(known);
  }
  const Estimate* found() const { return found_ ? &*found_ : nullptr; }  // by estimate() or learn()
  // Whether estimate() found that nothing fits.
  bool fits() const { return fits_; }
  // The plan with the stages of an estimate.
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
