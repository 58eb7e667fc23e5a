// Simulates plans of one source: what is captured whole and cut for one of them serves the others.
#pragma once

#include <deque>
#include <map>

#include "parallel/plan/candidate.h"
#include "parallel/plan/plan_space.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

// All requests have one device, one training state and one length of sequences.
class PlanSimulator {
 public:
  SimulatedPlan of(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

 private:
  struct Played {
    TrainingPlan plan;  // data parallel innermost, which bytes do not depend on
    double expert_capacity;
    PipelineRun run;
  };

  PlanSchedules schedules_;
  std::map<LayoutSizes, Graph> ranks_;
  std::deque<Played> played_;  // the last few: a search often comes back to one, or to its like in another order
};

}  // namespace shadowgraph
