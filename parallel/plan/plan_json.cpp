#include <nlohmann/json.hpp>

#include "parallel/plan/placement.h"
#include "shadowgraph/parallel/training_plan.h"
#include "support/json.h"

namespace shadowgraph {

nlohmann::json to_json(const TrainingPlan& plan) {
  nlohmann::json stages = nlohmann::json::array();
  for (const PlannedStage& stage : plan.stages) {
    stages.push_back({{"begins", stage.begins},
                      {"units", stage.units},
                      {"recomputed", stage.recomputed},
                      {"selective", stage.selective},
                      {"in_part", stage.in_part},
                      {"offloaded", stage.offloaded}});
  }
  nlohmann::json in_part = nlohmann::json::array();
  for (const PartlyKept& part : plan.in_part) in_part.push_back({{"layers", part.layers}, {"keeps", part.keeps}});
  return {{"tensor", plan.tensor},
          {"context", plan.context},
          {"data", plan.data},
          {"pipeline", plan.pipeline},
          {"stages_per_rank", plan.stages_per_rank},
          {"experts", plan.experts},
          {"micro_batch", plan.micro_batch},
          {"microbatches", plan.microbatches},
          {"zero", plan.zero},
          {"schedule", plan.schedule},
          {"layout", to_string(plan.layout)},
          {"overlap", to_string(plan.overlap)},
          {"attention", to_string(plan.attention)},
          {"data_outermost", plan.data_outermost},
          {"stages", std::move(stages)},
          {"recomputed", plan.recomputed},
          {"selective", plan.selective},
          {"in_part", std::move(in_part)},
          {"offloaded", plan.offloaded},
          {"optimizer_on_host", plan.optimizer_on_host}};
}

nlohmann::json to_json(const PlanAnswer& answer) {
  nlohmann::json simulated = nlohmann::json::array();
  for (const SimulatedPlan& made : answer.simulated) {
    simulated.push_back({{"plan", to_json(made.plan)},
                         {"text", to_string(made.plan)},
                         {"seconds", made.run.seconds()},
                         {"bytes", made.bytes()},
                         {"other_streams_bytes", made.other_streams},
                         {"host_bytes", made.on_host},
                         {"estimated_seconds", made.estimated},
                         {"estimated_bytes", made.estimated_bytes}});
    if (!made.layouts.empty()) simulated.back()["layouts"] = made.layouts;
  }
  nlohmann::json neighbours = nlohmann::json::array();
  for (const PlanNeighbour& neighbour : answer.neighbours) {
    nlohmann::json row{{"knob", neighbour.knob}, {"value", neighbour.value}};
    if (neighbour.seconds) row["seconds"] = *neighbour.seconds;
    if (neighbour.bytes) row["bytes"] = *neighbour.bytes;
    if (!neighbour.plan.empty()) row["plan"] = neighbour.plan;
    if (!neighbour.why_not.empty()) row["why_not"] = neighbour.why_not;
    neighbours.push_back(std::move(row));
  }
  nlohmann::json worst;
  if (answer.worst_routing) worst = {{"seconds", answer.worst_routing->first}, {"bytes", answer.worst_routing->second}};
  nlohmann::json worked_out = nlohmann::json::array();
  for (const WorkedOutPlan& made : answer.worked_out) {
    worked_out.push_back({{"plan", to_json(made.plan)},
                          {"text", to_string(made.plan)},
                          {"seconds", made.seconds},
                          {"bytes", made.bytes}});
  }
  nlohmann::json placed = nlohmann::json::array();
  for (const PlacedAxis& axis : placement_of(answer.best().plan, answer.request.links)) {
    placed.push_back({{"axis", axis.axis}, {"ranks", axis.ranks}, {"apart", axis.apart}, {"level", axis.level}});
  }
  return {{"model", answer.name},
          {"device", answer.request.device.name},
          {"devices", answer.request.devices},
          {"batch", answer.request.batch},
          {"sequence", answer.request.sequence},
          {"float8", answer.request.float8},
          {"memory", answer.memory},
          {"worst_routing", std::move(worst)},
          {"bound_seconds", answer.bound},
          {"tokens_per_second_per_device", answer.tokens_per_second()},
          {"model_flops_share", answer.model_flops_share()},
          {"simulated", std::move(simulated)},
          {"neighbours", std::move(neighbours)},
          {"placed", std::move(placed)},
          {"worked_out", std::move(worked_out)},
          {"counted", answer.counted},
          {"notes", answer.notes},
          {"run", to_json(answer.best().run)}};
}

}  // namespace shadowgraph
