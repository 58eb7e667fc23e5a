// Cluster plans compared with exhaustive search.
#include "shadowgraph/plan/training_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "models/registry.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/plan/plan_space.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/recompute.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "sharding/ranks/ranks.h"
#include "tests/parallel/plan_samples.h"

namespace shadowgraph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace plan_samples;  // NOLINT(google-build-using-namespace)

constexpr int64_t kLayers = 6;

StepSource small(const std::string& model, int64_t layers = kLayers) { return small_source(model, layers); }

StageOptions stage_options(const ClusterRequest& request) {
  return {.spec = &request.device, .interconnect = &request.links};
}

class PlanOf : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, PlanOf, ::testing::Values("llama3_8b", "gpt2", "bert_base"));

// The cost of any range of layers, composed from single layers and pairs, equals that of a stage cut there.
TEST_P(PlanOf, AStretchOfLayersIsWhatItsStageIs) {
  const ClusterRequest request = eight_devices();
  const Graph step = capture_small(GetParam(), {.micro_batch = 2, .layers = kLayers});
  const std::vector<std::string> begins = UnitNames::of(step).begins;
  const LayerChain chain(step, begins, stage_options(request), request.state);
  ASSERT_EQ(chain.size(), kLayers + (chain.begins(chain.size() - 1).empty() ? 0 : 2));
  for (int64_t first = 0; first < chain.size(); ++first) {
    for (int64_t last = first + 1; last <= chain.size(); ++last) {
      std::vector<std::string> cuts;
      if (first > 0) cuts.push_back(begins[static_cast<size_t>(first)]);
      if (last < chain.size()) cuts.push_back(begins[static_cast<size_t>(last)]);
      const PipelineStages stages = PipelineStages::at_modules(step, cuts, stage_options(request));
      const StageCosts& cut = stages.of(first > 0 ? 1 : 0);
      EXPECT_EQ(chain.carried(first, last), cut.carried) << first << " to " << last;
      EXPECT_EQ(chain.parameters(first, last), cut.parameters);
      EXPECT_EQ(chain.weights(first, last), cut.weights);
      // An unsplit step has one more scalar that waits.
      EXPECT_NEAR(chain.stage(first, last).awaiting, cut.awaiting, cuts.empty() ? 4 : 0);
      EXPECT_EQ(chain.stage(first, last).gradients, cut.gradients);
      EXPECT_NEAR(chain.seconds(first, last).computing(), cut.forward + cut.backward(), 1e-9);
      EXPECT_EQ(chain.stage(first, last).sends_forward, cut.sends_forward);
      EXPECT_EQ(chain.stage(first, last).sends_backward, cut.sends_backward);
    }
  }
}

TEST_P(PlanOf, MoreLayersOfFourAreThoseOfTheLongerModel) {
  const ClusterRequest request = eight_devices();
  const auto chain_of = [&](int64_t layers) {
    const Graph step = capture_small(GetParam(), {.layers = layers});
    return LayerChain(step, UnitNames::of(step).begins, stage_options(request), request.state);
  };
  const LayerChain longer = chain_of(7), repeated = *chain_of(4).with_more_layers(3);
  ASSERT_EQ(longer.size(), repeated.size());
  for (int64_t first = 0; first < longer.size(); ++first) {
    EXPECT_EQ(longer.begins(first), repeated.begins(first));
    for (int64_t last = first + 1; last <= longer.size(); ++last) {
      EXPECT_EQ(longer.carried(first, last), repeated.carried(first, last)) << first << " to " << last;
      EXPECT_EQ(longer.parameters(first, last), repeated.parameters(first, last));
      EXPECT_EQ(longer.transient(first, last), repeated.transient(first, last));
      EXPECT_EQ(longer.flops(first, last), repeated.flops(first, last));
      EXPECT_NEAR(longer.seconds(first, last).computing(), repeated.seconds(first, last).computing(), 1e-9);
    }
  }
}

RecomputeLevel level_of(Recompute what, const Graph& step, const std::vector<std::string>& begins) {
  const ClusterRequest request = eight_devices();
  return {what, false, {}, std::make_shared<LayerChain>(step, begins, stage_options(request), request.state)};
}

RecomputeLadder chains_of(const std::string& model) {
  const Graph kept = capture_small(model, {.layers = kLayers});
  std::vector<std::string> layers;
  const std::vector<std::string> begins = UnitNames::of(kept).begins;
  for (const std::string& unit : begins) {
    if (number_in_path(unit).second > 0) layers.push_back(unit);
  }
  Graph selective = clone(kept), whole = clone(kept);
  apply_recompute(selective, {}, layers);
  apply_recompute(whole, layers, {});
  return RecomputeLadder({level_of(Recompute::kNone, kept, begins), level_of(Recompute::kSelective, selective, begins),
                          level_of(Recompute::kFull, whole, begins)});
}

// Tries all cuts, each stage with as few recompute steps as fit.
double quickest_slowest_stage(const RecomputeLadder& chains, const SplitLimits& limits, size_t stage = 0,
                              int64_t first = 0) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double best = kNone;
  for (int64_t last = first + 1; last <= chains.units(); ++last) {
    double seconds = kNone;
    for (int64_t steps = 0; steps <= max_recompute_steps(chains, first, last) && seconds == kNone; ++steps) {
      const StageUnits made{first, last, steps};
      if (bytes_of(chains, made, limits.in_flight[stage], limits) <= limits.memory[stage])
        seconds = seconds_of(chains, made);
    }
    const bool is_last = stage + 1 == limits.in_flight.size();
    if (is_last && last != chains.units()) continue;
    const double rest = is_last ? 0 : quickest_slowest_stage(chains, limits, stage + 1, last);
    best = std::min(best, std::max(seconds, rest));
  }
  return best;
}

TEST_P(PlanOf, NoCutHasAQuickerSlowestStage) {
  const RecomputeLadder chains = chains_of(GetParam());
  SplitLimits limits{.in_flight = {{4, 0}, {3, 0}, {1, 0}}, .replicas = {.state = kMixedPrecision}};
  const auto bytes = [&](int64_t steps) { return bytes_of(chains, {1, 4, steps}, limits.in_flight[0], limits); };
  int found = 0;
  for (const double part : {0.9, 0.95, 1.0, 1.1, 2.0}) {
    limits.memory.assign(3, static_cast<int64_t>(part * static_cast<double>(bytes(0))));
    const double best = quickest_slowest_stage(chains, limits);
    const auto stages = split(chains, limits);
    ASSERT_EQ(stages.has_value(), std::isfinite(best)) << part;
    if (!stages) continue;
    ++found;
    double slowest = 0;
    for (const StageUnits& stage : *stages) slowest = std::max(slowest, seconds_of(chains, stage));
    EXPECT_NEAR(slowest, best, 1e-3 * best) << part;
  }
  EXPECT_GE(found, 2);
}

TEST(PlanSimulator, SaysOfEachPlanWhatAFreshOneSays) {
  const ClusterRequest request = eight_devices();
  const StepSource source = small("gpt2");
  PlanSimulator simulator;
  TrainingPlan plan = parse_plan(R"({"pipeline": 4, "microbatches": 8, "recomputed": [1, 1, 0, 0]})", source, request);
  for (const bool outermost : {false, true, false}) {
    for (const int64_t micro_batch : {1, 2}) {
      plan.data_outermost = outermost;
      plan.micro_batch = micro_batch;
      const SimulatedPlan made = simulator.of(source, request, plan), fresh = simulate_plan(source, request, plan);
      EXPECT_EQ(made.bytes(), fresh.bytes());
      EXPECT_EQ(to_json(made.run), to_json(fresh.run)) << outermost << micro_batch;
      EXPECT_EQ(made.run.actions(1).back().live, fresh.run.actions(1).back().live);
    }
  }
}

// Simulates each plan in the search space with its best cut and finds the fastest that fits. Tensor parallel is
// excluded.
void expect_the_best_of_all(const StepSource& source, ClusterRequest request, int64_t experts) {
  request.micro_batch = {1, 2};
  request.simulated = 5;
  const ClusterPlan answer = plan_training(source, request);
  double best = std::numeric_limits<double>::infinity();
  PlanSchedules schedules;
  int64_t simulated = 0;
  for (const int64_t micro_batch : request.micro_batch) {
    const Graph step = source.capture({.micro_batch = micro_batch});
    const std::vector<std::string> begins = UnitNames::of(step).begins;
    for (const int64_t sharing : expert_sizes(request, experts)) {
      const Graph rank = shard_experts_over(clone(step), {.ranks = sharing});
      // no other level is needed
      const RecomputeLadders ladders({level_of(Recompute::kNone, rank, begins)}, {}, false);
      for (const TrainingPlan& plan :
           plans_of(request, {.micro_batch = micro_batch, .experts = sharing}, ladders.kept().size())) {
        Candidate candidate(plan, ladders, request);
        const Estimate* estimate =
            candidate.estimate(schedules, answer.memory, std::numeric_limits<double>::infinity());
        if (estimate == nullptr) continue;
        const SimulatedPlan made = simulate_plan(source, request, candidate.with(*estimate));
        ++simulated;
        best = std::min(best, made.run.seconds());
        EXPECT_GE(made.run.seconds() * 1.0001, answer.bound) << to_string(plan);
        EXPECT_NEAR(estimate->seconds, made.run.seconds(), 0.02 * made.run.seconds()) << to_string(plan);
      }
    }
  }
  EXPECT_GT(simulated, 50);
  EXPECT_LE(answer.best().run.seconds(), 1.01 * best);
  EXPECT_LE(answer.best().bytes(), answer.memory);
}

TEST_P(PlanOf, IsWithinAHundredthOfAllThatCouldBePlanned) {
  ClusterRequest request = eight_devices();
  request.tensor = {1, 2};
  expect_the_best_of_all(small(GetParam()), request, 1);
}

// The first of six layers is dense; the others have eight experts each.
StepSource small_experts() {
  StepSource source = small("deepseek_v3");
  source.first_layers = 1;
  return source;
}

TEST(TrainingPlan, ExpertsAreWithinAHundredthOfAllThatCouldBePlanned) {
  ClusterRequest request = eight_devices();
  request.tensor = {1};
  expect_the_best_of_all(small_experts(), request, 8);
}

TEST(TrainingPlan, ExpertsOfARankAreFewerAndHaveFewerReplicas) {
  ClusterRequest request = eight_devices();
  const StepSource source = small_experts();
  const auto state_of = [&](int64_t experts, int zero) {
    const TrainingPlan plan{.data = 8, .experts = experts, .microbatches = 2, .zero = zero};
    const SimulatedPlan made = simulate_plan(source, request, plan);
    return std::pair(made.run.stages().of(0).optimizer_state, made.run.stages().of(0).parameters);
  };
  // 8 experts of 3 x 16 x 32 elements in five layers, with 12 bytes of state each.
  constexpr int64_t kElements = int64_t{5} * 8 * 3 * 16 * 32;
  const auto [whole_state, whole] = state_of(1, 0);
  for (const int64_t experts : {2, 4, 8}) {
    const auto [state, parameters] = state_of(experts, 0);
    EXPECT_EQ(whole - parameters, 2 * (kElements - kElements / experts));
    EXPECT_EQ(whole_state - state, 12 * (kElements - kElements / experts));
    // State sharded over all ranks is the same for every expert parallelism.
    EXPECT_NEAR(static_cast<double>(state_of(experts, 1).first), static_cast<double>(whole_state) / 8, 12.0);
  }
}

TEST(TrainingPlan, UnitsAreLayersAndWhatIsBesideThem) {
  EXPECT_THAT(UnitNames::of(capture_small("llama3_8b", {.layers = 2})).begins,
              ElementsAre("", "model.layers.0", "model.layers.1", "model.norm"));
}

TEST(TrainingPlan, EveryBuiltInModelIsPlanned) {
  for (const models::ModelInfo& info : models::available()) {
    ClusterRequest request = eight_devices();
    request.micro_batch = {2};
    request.simulated = 1;
    StepSource source{.capture = [&](const StepSize& size) { return capture_small(info.name, size); }};
    const ClusterPlan answer = plan_training(source, request);
    EXPECT_GE(answer.best().run.seconds(), answer.bound) << info.name;
    EXPECT_NEAR(answer.best().estimated, answer.best().run.seconds(), 0.02 * answer.best().estimated) << info.name;
  }
}

TEST(TrainingPlan, ALongScheduleTakesWhatTwoShortOnesTell) {
  ClusterRequest request = eight_devices();
  request.devices = 2;
  request.pipeline = {2};
  request.tensor = {1};
  request.micro_batch = {1};
  request.batch = 64;
  request.simulated = 1;
  for (const char* schedule : {"1f1b", "interleaved", "zero_bubble", "zbv", "v_half", "v_min"}) {
    request.schedules = {schedule};
    const ClusterPlan answer = plan_training(small("llama3_8b"), request);
    EXPECT_NEAR(answer.best().estimated, answer.best().run.seconds(), 0.02 * answer.best().estimated) << schedule;
  }
}

TEST(TrainingPlan, LittleMemoryIsMetByComputingAgain) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 256;
  request.micro_batch = {256};
  const StepSource source = small("llama3_8b", 24);
  const ClusterPlan roomy = plan_training(source, request);
  EXPECT_TRUE(roomy.best().plan.recomputed.empty());
  EXPECT_TRUE(roomy.best().plan.selective.empty());
  const int64_t beside = request.device.memory - roomy.memory;
  request.memory = beside + roomy.best().bytes() - 1;
  const ClusterPlan tight = plan_training(source, request);
  EXPECT_FALSE(tight.best().plan.recomputed.empty() && tight.best().plan.selective.empty());
  EXPECT_LE(tight.best().bytes(), tight.memory);
  EXPECT_GT(tight.best().run.seconds(), roomy.best().run.seconds());
  request.memory = beside + 1'000'000;
  try {
    plan_training(source, request);
    FAIL() << "a plan fits in one megabyte";
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("smallest first"));
    EXPECT_THAT(error.what(), HasSubstr("more: tp 1, pp 1, dp 1"));
  }
}

// A choice of full and partial layers for each stage; all choices are simulated.
struct Recomputed {
  double seconds = 0;
  int64_t bytes = 0;
};
std::vector<Recomputed> recomputed_in_all_ways(const StepSource& source, const ClusterRequest& request,
                                               const TrainingPlan& plan) {
  const std::vector<std::string> units = UnitNames::of(source.capture({.micro_batch = plan.micro_batch})).begins;
  std::vector<Recomputed> all;
  for (int64_t first = 1; first < std::ssize(units); ++first) {
    std::vector<std::vector<std::string>> layers(2);
    for (int64_t unit = 0; unit < std::ssize(units); ++unit) {
      const std::string& name = units[static_cast<size_t>(unit)];
      if (number_in_path(name).second > 0) layers[unit < first ? 0 : 1].push_back(name);
    }
    TrainingPlan cut = plan;
    cut.stages = {{.begins = units[0], .units = first},
                  {.begins = units[static_cast<size_t>(first)], .units = std::ssize(units) - first}};
    const auto ways = [](size_t n) { return (n + 1) * (n + 1); };
    for (size_t way = 0; way < ways(layers[0].size()) * ways(layers[1].size()); ++way) {
      const size_t of[] = {way % ways(layers[0].size()), way / ways(layers[0].size())};
      TrainingPlan made = cut;
      bool possible = true;
      for (size_t s = 0; s < 2; ++s) {
        const size_t n = layers[s].size(), whole = of[s] % (n + 1), parts = of[s] / (n + 1);
        possible = possible && whole + parts <= n;
        for (size_t i = 0; possible && i < whole + parts; ++i) {
          (i < whole ? made.recomputed : made.selective).push_back(layers[s][i]);
        }
      }
      if (!possible) continue;
      const SimulatedPlan simulated = simulate_plan(source, request, made);
      all.push_back({simulated.run.seconds(), simulated.bytes()});
    }
  }
  return all;
}

// Compares plans at memory limits between minimum and maximum with the fastest choice that fits.
void expect_nearly_the_best(const StepSource& source, ClusterRequest request, const std::vector<Recomputed>& all,
                            const std::vector<double>& shares, double most_slower,
                            const std::function<void(const SimulatedPlan&)>& look) {
  const auto by_bytes = [](const Recomputed& a, const Recomputed& b) { return a.bytes < b.bytes; };
  const auto [least, most] = std::ranges::minmax(all, by_bytes);
  request.memory = int64_t{400} << 30;
  const int64_t beside = *request.memory - plan_training(source, request).memory;
  for (const double share : shares) {
    const auto memory = least.bytes + static_cast<int64_t>(share * static_cast<double>(most.bytes - least.bytes));
    request.memory = beside + memory;
    double best = std::numeric_limits<double>::infinity();
    for (const Recomputed& one : all) {
      if (one.bytes <= memory) best = std::min(best, one.seconds);
    }
    const ClusterPlan answer = plan_training(source, request);
    EXPECT_LE(answer.best().run.seconds(), most_slower * best) << share;
    EXPECT_LE(answer.best().bytes(), memory);
    EXPECT_LE(answer.bound, 1.0001 * best) << share;
    look(answer.best());
  }
}

TEST(TrainingPlan, WhatIsComputedAgainIsWithinAHundredthOfAllWays) {
  ClusterRequest request = eight_devices();
  request.devices = 2;
  request.batch = 4;
  request.tensor = {1}, request.pipeline = {2}, request.micro_batch = {1};
  request.schedules = {"1f1b"}, request.stages_per_rank = {1};
  request.simulated = 4;
  const StepSource source = wide_source("llama3_8b", 4, 8192);
  const std::vector<Recomputed> all = recomputed_in_all_ways(source, request, {.pipeline = 2, .microbatches = 4});
  ASSERT_GT(all.size(), 100U);
  std::set<std::string> seen;
  expect_nearly_the_best(source, request, all, {0.1, 0.3, 0.5, 0.7, 0.9}, 1.01,
                         [&](const SimulatedPlan& best) { seen.insert(recompute_summary(best.plan)); });
  EXPECT_TRUE(seen.contains("selective") || seen.contains("selective and whole"));
}

// Six layers on one device, distributed over six modes: keep, partial or full recompute, each with or without offload.
std::vector<Recomputed> kept_in_all_ways(const StepSource& source, const ClusterRequest& request) {
  const std::vector<std::string> units = UnitNames::of(source.capture({})).begins;
  std::vector<std::string> layers;
  for (const std::string& unit : units) {
    if (number_in_path(unit).second > 0) layers.push_back(unit);
  }
  std::vector<Recomputed> all;
  std::vector<size_t> ways(layers.size(), 0);  // in descending order
  for (;;) {
    TrainingPlan plan{.microbatches = 2, .stages = {{.begins = units[0], .units = std::ssize(units)}}};
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (ways[layer] % 2 == 1) plan.offloaded.push_back(layers[layer]);
      if (ways[layer] / 2 == 1) plan.selective.push_back(layers[layer]);
      if (ways[layer] / 2 == 2) plan.recomputed.push_back(layers[layer]);
    }
    const SimulatedPlan made = simulate_plan(source, request, plan);
    all.push_back({made.run.seconds(), made.bytes()});
    size_t next = 0;
    while (next < ways.size() && ways[next] == 5) ++next;
    if (next == ways.size()) return all;
    std::fill_n(ways.begin(), next + 1, ways[next] + 1);
  }
}

// A stage mixes two recompute levels. A mix of three (kept, offloaded, recomputed) would be 2 % faster.
TEST(TrainingPlan, WhatIsOnTheHostIsNearlyTheBestOfAllWays) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 2;
  request.sequence = 8192;
  request.tensor = {1}, request.micro_batch = {1};
  request.offload.push_back(Offload::kActivations);
  request.simulated = 4;
  const StepSource source = wide_source("llama3_8b", 6, 8192);
  const std::vector<Recomputed> all = kept_in_all_ways(source, request);
  ASSERT_EQ(all.size(), 462U);
  bool used = false;
  expect_nearly_the_best(source, request, all, {0.05, 0.2, 0.4, 0.6, 0.8}, 1.025, [&](const SimulatedPlan& best) {
    used = used || !best.plan.offloaded.empty();
    EXPECT_EQ(best.on_host > 0, !best.plan.offloaded.empty());
  });
  EXPECT_TRUE(used);
}

TEST(TrainingPlan, TheHostIsAKnobAndHasAnEnd) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 1;
  request.sequence = 8192;
  const StepSource source = wide_source("llama3_8b", 4, 8192);
  request.memory = int64_t{200} << 30;
  const ClusterPlan roomy = plan_training(source, request);
  // Less memory than any plan without offload needs.
  request.memory = *request.memory - roomy.memory + roomy.best().bytes() / 2;
  try {
    plan_training(source, request);
    FAIL() << "a plan fits in half of the memory";
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("with the optimizer offloaded to CPU: tp 1"));
  }
  request.offload.push_back(Offload::kOptimizer);
  const ClusterPlan with = plan_training(source, request);
  EXPECT_TRUE(with.best().plan.optimizer_on_host);
  EXPECT_GT(with.best().on_host, 0);
  EXPECT_LE(with.best().bytes(), with.memory);
  EXPECT_THAT(to_text(with), HasSubstr("optimizer on CPU"));
  request.device.host->memory = with.best().on_host - 1;
  EXPECT_THROW(plan_training(source, request), InfeasibleError);
  request.device.host.reset();
  EXPECT_THROW(plan_training(source, request), Error);
}

TEST(TrainingPlan, WhatMayBeComputedAgainIsAKnob) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 1;
  request.sequence = 8192;
  const StepSource source = wide_source("llama3_8b", 4, 8192);
  request.memory = int64_t{200} << 30;
  const ClusterPlan roomy = plan_training(source, request);
  ASSERT_EQ(recompute_summary(roomy.best().plan), "none");
  request.memory = *request.memory - roomy.memory + roomy.best().bytes() - (int64_t{3} << 30);
  const ClusterPlan any = plan_training(source, request);
  EXPECT_FALSE(any.best().plan.selective.empty());
  std::vector<std::string> values;
  for (const PlanNeighbor& neighbor : any.neighbors) {
    EXPECT_TRUE(!neighbor.seconds || neighbor.bytes <= any.memory) << neighbor.option << " " << neighbor.value;
    if (neighbor.option != "recompute") continue;
    values.push_back(neighbor.value);
    if (neighbor.value == "none") {
      EXPECT_FALSE(neighbor.seconds);
    }
    if (neighbor.value == "full") {
      EXPECT_TRUE(neighbor.seconds);
    }
  }
  EXPECT_THAT(values, ::testing::IsSupersetOf({"none", "full"}));
  EXPECT_THAT(to_text(any), HasSubstr("of which recomputed; s: selective"));
  request.recompute = {Recompute::kFull};
  const ClusterPlan whole = plan_training(source, request);
  EXPECT_TRUE(whole.best().plan.selective.empty());
  EXPECT_GT(whole.best().run.seconds(), any.best().run.seconds());
  request.recompute = {Recompute::kNone};
  try {
    plan_training(source, request);
    FAIL() << "the plan fits without recompute";
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("with any recompute: tp 1"));
  }
}

TEST(TrainingPlan, TheCurveIsAsQuickAsWholeLayersAndTheirParts) {
  ClusterRequest request = eight_devices();
  request.devices = 1;
  request.batch = 1;
  request.sequence = 8192;
  const StepSource source = wide_source("llama3_8b", 8, 8192);
  request.memory = int64_t{200} << 30;
  const ClusterPlan roomy = plan_training(source, request);
  const int64_t beside = *request.memory - roomy.memory;
  bool used = false;
  for (const int64_t less : {1, 2, 4, 6}) {
    request.memory = beside + roomy.best().bytes() - (less << 30);
    request.recompute = {Recompute::kSelective, Recompute::kFull};
    const ClusterPlan layers = plan_training(source, request);
    request.recompute.push_back(Recompute::kCurve);
    const ClusterPlan curve = plan_training(source, request);
    EXPECT_LE(curve.best().run.seconds(), 1.002 * layers.best().run.seconds()) << less;
    EXPECT_LE(curve.best().bytes(), curve.memory);
    EXPECT_NEAR(curve.best().estimated, curve.best().run.seconds(), 1e-3 * curve.best().estimated);
    if (curve.best().plan.in_part.empty()) continue;
    used = true;
    EXPECT_THAT(to_text(curve), HasSubstr("c: curve"));
    // The plan, given explicitly, simulates to the same result.
    const SimulatedPlan again =
        simulate_plan(source, request, parse_plan(to_json(curve.best().plan).dump(), source, request));
    EXPECT_EQ(again.bytes(), curve.best().bytes());
    EXPECT_DOUBLE_EQ(again.run.seconds(), curve.best().run.seconds());
    TrainingPlan other = curve.best().plan;
    other.in_part.front().keeps.emplace_back("aten::mm#99");
    EXPECT_THROW(simulate_plan(source, request, other), Error);
  }
  EXPECT_TRUE(used);
}

TEST(TrainingPlan, WhatMakesNoSenseIsRefused) {
  const StepSource source = small("llama3_8b");
  const auto refused = [&](auto&& change, const char* why) {
    ClusterRequest request = eight_devices();
    change(request);
    try {
      plan_training(source, request);
      FAIL() << why;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  };
  refused([](auto& r) { r.devices = 0; }, "devices must be at least 1");
  refused([](auto& r) { r.batch = 0; }, "at least one sample");
  refused([](auto& r) { r.tensor = {3}; }, "does not divide 8 devices");
  refused([](auto& r) { r.schedules = {"2f2b"}; }, "unknown schedule '2f2b'");
  refused([](auto& r) { r.zero = {4}; }, "0 to 3");
  refused([](auto& r) { r.micro_batch = {0}; }, "micro_batch: '0' is not an integer >= 1");
  refused([](auto& r) { r.batch = 2, r.tensor = {1}, r.pipeline = {1}; }, "no tensor-parallel degree");
}

// 14 ranks process 128 micro-batches in 9 rounds, of which the last is padded.
TEST(TrainingPlan, SchedulesInRoundsAreFilledUp) {
  ClusterRequest request = eight_devices();
  request.devices = 3;
  request.batch = 16;
  request.tensor = {1};
  request.pipeline = {3};
  request.micro_batch = {1};
  request.schedules = {"interleaved"};
  request.stages_per_rank = {2};
  const ClusterPlan answer = plan_training(small("llama3_8b"), request);
  EXPECT_EQ(answer.best().plan.microbatches, 18);
  EXPECT_THAT(to_text(answer), HasSubstr("2 of 18 samples are padding"));
}

TEST(TrainingPlan, ASourceThatMakesNoFewerLayersIsRefused) {
  StepSource source = small("llama3_8b");
  source.capture = [](StepSize size) {
    size.layers = kLayers;
    return capture_small("llama3_8b", size);
  };
  try {
    plan_training(source, eight_devices());
    FAIL() << "a model of six layers was accepted as one of four";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("was requested with 4 layers but has 6 in 'model.layers.'"));
  }
  source.layers = 0;
  EXPECT_EQ(plan_training(source, eight_devices()).best().run.seconds(),
            plan_training(small("llama3_8b"), eight_devices()).best().run.seconds());
}

TEST(TrainingPlan, ABatchThatDoesNotDivideIsFilledUp) {
  ClusterRequest request = eight_devices();
  request.batch = 13;
  request.tensor = {1};
  request.pipeline = {2};
  request.micro_batch = {1};
  const ClusterPlan answer = plan_training(small("llama3_8b"), request);
  EXPECT_EQ(answer.best().plan.data, 4);
  EXPECT_EQ(answer.best().plan.microbatches, 4);  // 16 samples, 3 of them padding
  EXPECT_THAT(to_text(answer), HasSubstr("3 of 16 samples are padding"));
}

}  // namespace
}  // namespace shadowgraph
