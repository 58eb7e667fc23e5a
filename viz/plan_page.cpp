// Writes a plan's page (viz/page_shell.h). viz/page/src/plan/data.ts says what it is given.

#include <nlohmann/json.hpp>

#include <cmath>

#include "shadowgraph/draw_cluster_plan.h"
#include "shadowgraph/parallel/training_plan.h"
#include "support/json.h"
#include "viz/page_data.h"
#include "viz/page_shell.h"

namespace shadowgraph {
namespace {

int number_of(PipelineWork work) {
  switch (work) {
    case PipelineWork::kForward:
      return 0;
    case PipelineWork::kBackward:
      return 1;
    case PipelineWork::kInputGradient:
      return 2;
    default:
      return 3;
  }
}

nlohmann::json actions_of(const PipelineRun& run, int32_t rank) {
  constexpr double kMillion = 1e6;
  nlohmann::json numbers = nlohmann::json::array();
  const auto part = [&](double seconds) {
    return run.seconds() > 0 ? std::llround(kMillion * seconds / run.seconds()) : 0;
  };
  for (const PipelineActionTime& at : run.actions(rank)) {
    if (!computes(at.action)) continue;
    numbers.push_back(number_of(at.action.work));
    numbers.push_back(at.action.stage);
    numbers.push_back(at.action.microbatch);
    numbers.push_back(part(at.begin));
    numbers.push_back(part(at.end));
    numbers.push_back(at.live);
  }
  return numbers;
}

}  // namespace

std::string plan_html(const PlanAnswer& answer) {
  nlohmann::json data = to_json(answer);
  data["device_title"] = answer.request.device.title;
  nlohmann::json& actions = data["actions"] = nlohmann::json::array();
  const PipelineRun& run = answer.best().run;
  for (int32_t rank = 0; rank < run.ranks(); ++rank) actions.push_back(actions_of(run, rank));
  return page_of(answer.name, "plan.js", {{"plan-data", packed(json_text(data))}});
}

}  // namespace shadowgraph
