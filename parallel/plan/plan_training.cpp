#include "parallel/plan/plan_search.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/what_would_fit.h"

namespace shadowgraph {

PlanAnswer try_plan(const StepSource& source, const ClusterRequest& request, KeptTables& kept, bool neighbours) {
  return PlanSearch(source, request, kept).run(neighbours);
}

std::optional<FittingPlan> first_that_fits(const StepSource& source, const ClusterRequest& request, KeptTables& kept,
                                           int64_t memory) {
  return PlanSearch(source, request, kept).first_that_fits(memory);
}

PlanAnswer plan_training(const StepSource& source, const ClusterRequest& request) {
  KeptTables kept;
  PlanAnswer answer = try_plan(source, request, kept, true);
  if (answer.simulated.empty()) throw NoTrainingPlanError(what_would_fit(source, request, kept));
  return answer;
}

}  // namespace shadowgraph
