// Simulates plans of one source: what is captured whole and cut for one of them serves the others.
#pragma once

#include <map>

#include "parallel/plan/plan_space.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

// All requests have one device and one length of sequences.
class PlanSimulator {
 public:
  SimulatedPlan of(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

 private:
  std::map<LayoutSizes, Graph> ranks_;
};

}  // namespace shadowgraph
