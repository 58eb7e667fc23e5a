#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "parallel/plan/plan_space.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/units.h"
#include "support/json.h"

namespace shadowgraph {

std::string to_string(const TrainingPlan& plan) {
  std::string text = fmt::format("tp {}", plan.tensor);
  if (plan.context > 1) text += fmt::format(", cp {}", plan.context);
  text += fmt::format(", pp {}", plan.pipeline);
  if (plan.stages_per_rank > 1) text += fmt::format(" x {}", plan.stages_per_rank);
  if (plan.pipeline > 1) text += " " + plan.schedule;
  text += fmt::format(", dp {}", plan.data);
  if (plan.zero > 0) text += fmt::format(" zero {}", plan.zero);
  if (plan.experts > 1) text += fmt::format(", ep {}", plan.experts);
  text += fmt::format(", {} x {}", plan.microbatches, plan.micro_batch);
  for (const auto& row : TrainingPlan::table().rows()) {
    const std::vector<std::string> value = row.print(plan);
    if (row.summary.empty() || value == row.print({})) continue;
    text += ", " + fmt::format(fmt::runtime(row.summary), value.front());
  }
  return text;
}

static std::string stages_text(const TrainingPlan& plan) {
  std::string text;
  for (const PlannedStage& stage : plan.stages) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", stage.units);
    std::vector<std::string> recomputed;
    for (const auto& [key, suffix, count] : kStageCounts) {
      if (stage.*count > 0) recomputed.push_back(fmt::format("{}{}", stage.*count, suffix));
    }
    if (!recomputed.empty()) text += fmt::format("({})", fmt::join(recomputed, "+"));
  }
  return text;
}

static std::string neighbor_text(const PlanNeighbor& neighbor, const SimulatedPlan& best) {
  std::string text = fmt::format("  {:<16} {:<12} ", neighbor.option, neighbor.value);
  if (!neighbor.seconds) return text + neighbor.why_not + "\n";
  const double slower = *neighbor.seconds / best.estimated - 1;
  const int64_t more = *neighbor.bytes - best.estimated_bytes;
  return text + fmt::format("{:>10}  {:+6.1f} %  {:>11}  {}{:<11} {}\n", human_seconds(*neighbor.seconds), 100 * slower,
                            human_bytes(*neighbor.bytes), more < 0 ? "-" : "+", human_bytes(std::abs(more)),
                            neighbor.plan);
}

std::string to_text(const ClusterPlan& answer) {
  const SimulatedPlan& best = answer.best();
  std::string text = fmt::format("{} on {} x {}\n", answer.name, answer.request.devices, answer.request.device.title);
  text += to_string(best.plan) + "\n";
  text += fmt::format("{} per step of {} samples", human_seconds(best.run.seconds()), answer.request.batch);
  if (answer.request.sequence > 0) text += fmt::format(", {:.0f} tokens/s per device", answer.tokens_per_second());
  text += fmt::format(", {:.1f} % of peak FLOP/s; at most {} of {} per device\n", 100 * answer.model_flops_share(),
                      human_bytes(best.bytes()), human_bytes(answer.memory));
  text += fmt::format("lower bound over all plans, from layer costs: {}, {:.1f} % less\n", human_seconds(answer.bound),
                      100 * (1 - answer.bound / best.run.seconds()));
  const int64_t filled = best.plan.data * best.plan.microbatches * best.plan.micro_batch;
  if (filled > answer.request.batch) {
    text += fmt::format("{} of {} samples are padding: the batch does not divide evenly\n",
                        filled - answer.request.batch, filled);
  }
  if (answer.request.float8)
    text += "matmuls of layers in float8, not the head; percentages are of the bfloat16 peak\n";
  if (answer.worst_routing) {
    const auto& [seconds, bytes] = *answer.worst_routing;
    text += fmt::format("balanced routing, capacity factor {}; worst case, all rows on one expert rank: {} and {}\n",
                        answer.request.expert_capacity, human_seconds(seconds), human_bytes(bytes));
  }
  text +=
      fmt::format("layers per stage (of which recomputed{}{}{}): {}\n",
                  best.plan.selective.empty() ? "" : "; s: selective", best.plan.in_part.empty() ? "" : "; c: curve",
                  best.plan.offloaded.empty() ? "" : "; h: offloaded to CPU", stages_text(best.plan));
  if (best.on_host > 0) text += fmt::format("offloaded to CPU: at most {} per rank\n", human_bytes(best.on_host));
  const std::vector<PlacedAxis> placed = placement_of(best.plan, answer.request.links);
  if (!placed.empty()) text += fmt::format("placed, innermost first: {}\n", to_string(placed));
  std::vector<std::string> counts;
  for (const auto& [what, count] : answer.counted) counts.push_back(fmt::format("{} {}", count, what));
  text += fmt::format("{}; layer costs {}, search {}, simulation {}\n\n", fmt::join(counts, ", "),
                      human_seconds(answer.table_seconds), human_seconds(answer.search_seconds),
                      human_seconds(answer.simulation_seconds));
  text += "simulated:\n";
  for (const SimulatedPlan& plan : answer.simulated) {
    text += fmt::format("  {:<64} {:>10} {:>11}  estimated {:>10} {:>11}\n", to_string(plan.plan),
                        human_seconds(plan.run.seconds()), human_bytes(plan.bytes()), human_seconds(plan.estimated),
                        human_bytes(plan.estimated_bytes));
  }
  text += "\nbest plans with one option changed, from layer costs:\n";
  for (const PlanNeighbor& neighbor : answer.neighbors) text += neighbor_text(neighbor, best);
  for (const std::string& note : answer.notes) text += "note: " + note + "\n";
  return text;
}

nlohmann::json to_json(const TrainingPlan& plan) {
  nlohmann::json stages = nlohmann::json::array();
  for (const PlannedStage& stage : plan.stages) {
    stages.push_back({{"begins", stage.begins}, {"units", stage.units}});
    for (const auto& [key, suffix, count] : kStageCounts) stages.back()[key] = stage.*count;
  }
  nlohmann::json in_part = nlohmann::json::array();
  for (const PartialRecompute& part : plan.in_part) in_part.push_back({{"layers", part.layers}, {"keeps", part.keeps}});
  nlohmann::json json{{"stages", std::move(stages)},
                      {"recomputed", plan.recomputed},
                      {"selective", plan.selective},
                      {"in_part", std::move(in_part)},
                      {"offloaded", plan.offloaded}};
  for (const auto& row : TrainingPlan::table().rows()) json[row.name] = row.json(row.print(plan));
  return json;
}

nlohmann::json to_json(const ClusterPlan& answer) {
  nlohmann::json simulated = nlohmann::json::array();
  for (const SimulatedPlan& plan : answer.simulated) {
    simulated.push_back({{"plan", to_json(plan.plan)},
                         {"text", to_string(plan.plan)},
                         {"seconds", plan.run.seconds()},
                         {"bytes", plan.bytes()},
                         {"other_streams_bytes", plan.other_streams},
                         {"host_bytes", plan.on_host},
                         {"estimated_seconds", plan.estimated},
                         {"estimated_bytes", plan.estimated_bytes}});
    if (!plan.layouts.empty()) simulated.back()["layouts"] = plan.layouts;
  }
  nlohmann::json neighbors = nlohmann::json::array();
  for (const PlanNeighbor& neighbor : answer.neighbors) {
    nlohmann::json row{{"option", neighbor.option}, {"value", neighbor.value}};
    if (neighbor.seconds) row["seconds"] = *neighbor.seconds;
    if (neighbor.bytes) row["bytes"] = *neighbor.bytes;
    if (!neighbor.plan.empty()) row["plan"] = neighbor.plan;
    if (!neighbor.why_not.empty()) row["why_not"] = neighbor.why_not;
    neighbors.push_back(std::move(row));
  }
  nlohmann::json worst;
  if (answer.worst_routing) worst = {{"seconds", answer.worst_routing->first}, {"bytes", answer.worst_routing->second}};
  nlohmann::json estimated_plans = nlohmann::json::array();
  for (const EstimatedPlan& plan : answer.estimated_plans) {
    estimated_plans.push_back({{"plan", to_json(plan.plan)},
                               {"text", to_string(plan.plan)},
                               {"seconds", plan.seconds},
                               {"bytes", plan.bytes}});
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
          {"neighbors", std::move(neighbors)},
          {"placed", std::move(placed)},
          {"estimated_plans", std::move(estimated_plans)},
          {"counted", answer.counted},
          {"notes", answer.notes},
          {"run", to_json(answer.best().run)}};
}

}  // namespace shadowgraph
