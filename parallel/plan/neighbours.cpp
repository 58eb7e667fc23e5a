// The best plan with another value of one knob.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "parallel/plan/compute_again.h"
#include "parallel/plan/plan_search.h"

namespace shadowgraph {

// The best plan of each other value of a knob, all other knobs free.
void PlanSearch::look_around() {
  const auto look = [&](const char* name, const auto& knob) {
    const std::string chosen = knob(answer_.best().plan);
    std::map<std::string, std::vector<Candidate*>> values;  // least bound first
    for (Candidate& candidate : candidates_) values[knob(candidate.plan())].push_back(&candidate);
    for (const auto& [value, candidates] : values) {
      if (value != chosen) answer_.neighbours.push_back(best_of(name, value, candidates));
    }
  };
  look("optimizer on", [](const TrainingPlan& plan) { return plan.optimizer_on_host ? "host" : "device"; });
  const auto number = [](int64_t TrainingPlan::*knob) {
    return [knob](const TrainingPlan& plan) { return fmt::format("{}", plan.*knob); };
  };
  look("attention", [](const TrainingPlan& plan) { return std::string(to_string(plan.attention)); });
  look("layout", [](const TrainingPlan& plan) { return std::string(to_string(plan.layout)); });
  look("tensor", number(&TrainingPlan::tensor));
  look("context", number(&TrainingPlan::context));
  look("pipeline", number(&TrainingPlan::pipeline));
  look("micro-batch", number(&TrainingPlan::micro_batch));
  look("experts", number(&TrainingPlan::experts));
  look("zero", [](const TrainingPlan& plan) { return fmt::format("{}", plan.zero); });
  look("schedule", [](const TrainingPlan& plan) {
    return plan.pipeline == 1 ? "none" : fmt::format("{} x {}", plan.schedule, plan.stages_per_rank);
  });
}

// The same sizes under an engine that overlaps otherwise.
void PlanSearch::look_at_overlaps() {
  const TrainingPlan& best = answer_.best().plan;
  for (const auto other : {CollectiveOverlap::kNone, CollectiveOverlap::kBackward, CollectiveOverlap::kPieces}) {
    if (best.tensor == 1 || other == best.overlap) continue;
    TrainingPlan plan = best;
    plan.overlap = other;
    const LayoutTables* tables = tables_.of(LayoutSizes::of(plan));
    if (tables == nullptr) continue;
    plan.stages.clear();
    plan.recomputed.clear();
    plan.selective.clear();
    plan.in_part.clear();
    plan.offloaded.clear();
    const WaysDown& ways = ways_.emplace_back(tables->chains.at(best.experts), request().recompute, true);
    Candidate candidate(std::move(plan), ways, request());
    answer_.neighbours.push_back(best_of("overlap", std::string(to_string(other)), {&candidate}));
  }
}

// Plans of the space in which nothing, parts or whole layers alone are computed again, and in which no layer is on the
// host.
void PlanSearch::look_at_recomputing() {
  const auto best_with = [&](const char* knob, std::string_view value, std::vector<Candidate> others) {
    std::vector<Candidate*> all;
    for (Candidate& candidate : others) all.push_back(&candidate);
    answer_.neighbours.push_back(best_of(knob, std::string(value), all));
  };
  if (!answer_.best().plan.offloaded.empty()) {
    best_with("activations on", "device", candidates_with(request().recompute, false));
  }
  if (recomputing_of(answer_.best().plan) == to_string(Recompute::kNothing)) return;  // the others may do that, too
  using enum Recompute;
  const std::vector<Recompute>& asked = request().recompute;
  for (const Recompute what :
       asked.empty() ? std::vector{kNothing, kSelective, kWhole} : std::vector{kNothing, kSelective, kWhole, kCurve}) {
    if (to_string(what) == recomputing_of(answer_.best().plan)) continue;
    if (what != Recompute::kNothing && !asked.empty() && std::ranges::find(asked, what) == asked.end()) continue;
    best_with("computed again", to_string(what), candidates_with({what}));
  }
}

// Each rank may have rows of all ranks of its group, as many of each token as it has experts for.
void PlanSearch::route_badly() {
  const TrainingPlan& plan = answer_.best().plan;
  if (plan.experts == 1) return;
  ClusterRequest worst = request();
  worst.expert_capacity = static_cast<double>(plan.experts);
  const SimulatedPlan made = kept_.simulator.of(source_, worst, plan);
  answer_.worst_routing = {made.run.seconds(), made.bytes()};
}

// An estimate that has spent spare memory may need more than there is. It is looked for again with as much less.
std::optional<Estimate> PlanSearch::fitting(Candidate& candidate, double enough) {
  constexpr int kMostTries = 4;
  const Estimate* known = candidate.estimate(schedules_, answer_.memory, enough);
  if (known == nullptr) return std::nullopt;
  std::optional<Estimate> found = *known;
  int64_t memory = answer_.memory;
  for (int tries = 0; found && found->bytes > answer_.memory; ++tries) {
    memory -= found->bytes - answer_.memory;
    found = tries < kMostTries ? candidate.with_less(schedules_, memory, enough, false) : std::nullopt;
    if (found) candidate.learn(found);
  }
  return found;
}

PlanNeighbour PlanSearch::best_of(const std::string& knob, const std::string& value,
                                  const std::vector<Candidate*>& candidates) {
  constexpr double kMuchSlower = 1.5;
  PlanNeighbour best{.knob = knob, .value = value, .why_not = "no plan fits, or no schedule is made for its sizes"};
  std::optional<TrainingPlan> plan;
  double enough = kMuchSlower * answer_.best().run.seconds();
  for (Candidate* candidate : candidates) {
    const std::optional<Estimate> estimate = fitting(*candidate, enough);
    if (candidate->fits() && !best.seconds) {
      best.why_not = fmt::format("none within {} times the best", kMuchSlower);
    }
    if (!estimate) continue;
    best = {knob, value, estimate->seconds, estimate->bytes, to_string(candidate->plan()), ""};
    enough = estimate->seconds;
    plan = candidate->with(*estimate);
  }
  for (const SimulatedPlan& made : answer_.simulated) {
    if (made.plan != plan) continue;
    best.seconds = made.run.seconds();
    best.bytes = made.bytes();
  }
  return best;
}

}  // namespace shadowgraph
