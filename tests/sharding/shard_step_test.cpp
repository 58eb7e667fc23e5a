// Tests shard_step(): defaults of a request, the same result as the separate steps, and refused requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adamw.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/shard.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

// Its loss is a mean, and log_softmax is not decomposed.
const Graph& llama_step() {
  static const Graph graph = [] {
    const FakeTensorMode mode({.device = at::kCUDA});
    const models::BuiltModel model = models::build("llama3_8b", {.tiny = true});
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions());
    return capture_training_step(models::program_of(model, &optimizer)).graph;
  }();
  return graph;
}

ShardingRequest on_mesh(const char* mesh) { return {.mesh = DeviceMesh::parse(mesh)}; }

// Removes measured times, the only difference between two runs.
nlohmann::json without_clock(nlohmann::json json) {
  json.erase("problem_seconds");
  json.erase("solver_seconds");
  return json;
}

// Removes the device and its links, which only a step has; fails if they are not there.
nlohmann::json without_device(nlohmann::json json) {
  EXPECT_EQ(json.erase("device") + json.erase("interconnect"), 2U);
  return json;
}
std::string without_device(std::string text) {
  const size_t line = text.find("devices: NVIDIA H100 SXM5 80 GB; links: ");
  EXPECT_NE(line, std::string::npos) << text;
  return line == std::string::npos ? text : text.erase(line, text.find('\n', line) + 1 - line);
}

class PlanStep : public ::testing::Test {
 protected:
  ShardingOptions by_hand(const ShardingRequest& request) const {
    return {.mesh = request.mesh,
            .device = &device_,
            .interconnect = &links_,
            .memory = request.memory.value_or(kNoLimit),
            .pins = request.pins,
            .unfold = request.unfold};
  }
  static void expect_same(const Sharding& planned, const Graph& graph, const ShardingResult& answer) {
    EXPECT_EQ(to_text(planned.graph), to_text(graph));
    EXPECT_EQ(to_json(planned.result.plan, planned.graph), to_json(answer.plan, graph));
    EXPECT_EQ(without_clock(to_json(planned.result)), without_clock(to_json(answer)));
    EXPECT_EQ(to_text(planned.result.rank->graph), to_text(answer.rank->graph));
  }
  DeviceSpec device_ = DeviceSpec::named("h100");
  Interconnect links_ = Interconnect::named("h100");
};

TEST_F(PlanStep, TakesWhatIsUsualWhereARequestSaysNothing) {
  const Sharding planned = shard_step(clone(llama_step()), on_mesh("2"));
  EXPECT_EQ(planned.device.name, "h100") << "of a graph that does not say otherwise";
  EXPECT_EQ(planned.links.name, "h100");
  EXPECT_EQ(planned.result.memory, kNoLimit);
  EXPECT_TRUE(planned.result.folded);
  EXPECT_TRUE(planned.result.compared.empty());
  EXPECT_EQ(planned.result.rank->rank, 0);
  EXPECT_TRUE(planned.rounds.empty());
  EXPECT_TRUE(planned.segments.empty());
  const ShardingRequest empty;
  EXPECT_EQ(empty.time_limit, 20);
  EXPECT_EQ(empty.solver, AssignmentSolver::kBuiltin);
}

TEST_F(PlanStep, TakesTheFiguresOfTheRequest) {
  ShardingRequest request = on_mesh("2");
  request.device = DeviceSpec::named("cpu");
  EXPECT_THAT(
      [&] { shard_step(clone(llama_step()), request); },
      ::testing::ThrowsMessage<Error>(AllOf(HasSubstr("has no default interconnect"), HasSubstr("--interconnect"))));
  request.links = Interconnect::named("h100");
  const Sharding slow = shard_step(clone(llama_step()), request);
  EXPECT_EQ(slow.device.name, "cpu");
  EXPECT_EQ(slow.links.name, "h100");
}

TEST_F(PlanStep, SplitsMeansAndIsTheSameAsByHand) {
  Graph graph = clone(llama_step());
  ASSERT_GT(split_mean_losses(graph), 0);
  ShardingRequest request = on_mesh("2x2");
  request.explain = {"model.norm.weight"};
  request.compare = true;
  request.rank = 3;
  const Sharding planned = shard_step(clone(llama_step()), request);
  expect_same(planned, graph, shard(graph, by_hand(request), {.compare = true, .explain = request.explain, .rank = 3}));
  EXPECT_EQ(without_device(without_clock(to_json(planned))), without_clock(to_json(planned.result)));
  EXPECT_EQ(without_device(to_text(planned, 5)), to_text(planned.result, 5));
}

TEST_F(PlanStep, CutsTheVocabularyOnlyWhenAsked) {
  Graph graph = clone(llama_step());
  split_mean_losses(graph);
  ASSERT_GT(split_log_softmaxes(graph), 0);
  ShardingRequest request = on_mesh("2");
  request.shard_vocabulary = true;
  expect_same(shard_step(clone(llama_step()), request), graph, shard(graph, by_hand(request)));
}

// With a memory limit, the search stops 0.1 % above the bound, because a proof of optimality takes long.
TEST_F(PlanStep, KeepsWithinMemoryAsByHand) {
  Graph graph = clone(llama_step());
  split_mean_losses(graph);
  ShardingRequest request = on_mesh("4");
  const int64_t peak = shard(graph, by_hand(request)).peak;
  request.memory = peak - peak / 20;
  const Sharding planned = shard_step(clone(llama_step()), request);
  EXPECT_LE(planned.result.peak, *request.memory);
  expect_same(planned, graph, shard(graph, by_hand(request), {.solve = {.gap = 1e-3}}));
}

TEST_F(PlanStep, ComputesAgainWhatTheRoundsSay) {
  Graph graph = clone(llama_step());
  split_mean_losses(graph);
  ShardingRequest request = on_mesh("2");
  request.recompute = true;
  request.memory = peak_of_live_bytes(graph) * 6 / 10;
  const Sharding found = shard_and_recompute(graph, by_hand(request), {.shard = {.solve = {.gap = 1e-3}}});
  const Sharding planned = shard_step(clone(llama_step()), request);
  expect_same(planned, found.graph, found.result);
  EXPECT_EQ(planned.segments.size(), found.segments.size());
  ASSERT_FALSE(planned.rounds.empty());
  EXPECT_EQ(without_clock(to_json(planned)), without_clock(to_json(found)));
  EXPECT_THAT(to_text(planned), HasSubstr("rounds within"));
  EXPECT_THAT(without_device(to_text(planned)), HasSubstr(to_text(planned.result)));
}

TEST_F(PlanStep, PlansItsCopiesAsItsAnswerCountsThem) {
  // Without a limit this small step is fastest when replicated on each device, without communication.
  ShardingRequest request = on_mesh("2x2");
  request.memory = peak_of_live_bytes(llama_step()) * 6 / 10;
  const Sharding planned = shard_step(clone(llama_step()), request);
  int64_t calls = 0;
  for (const LayoutChange& copy : layout_changes(planned.graph, planned.result.plan, planned.planner())) {
    calls += static_cast<int64_t>(copy.path.steps.size());
  }
  int64_t counted = 0;
  for (const RedistributionTraffic& sum : planned.result.traffic) counted += sum.calls;
  EXPECT_GT(counted, 0);
  EXPECT_EQ(calls, counted);
}

TEST_F(PlanStep, GivesEachRankAndTheProblem) {
  ShardingRequest request = on_mesh("2");
  std::vector<int64_t> ranks;
  int problems = 0;
  request.each_rank = [&](const ShardedGraph& sharded) { ranks.push_back(sharded.rank); };
  request.problem = [&](const ShardingProblem&) { ++problems; };
  shard_step(clone(llama_step()), request);
  EXPECT_EQ(ranks, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(problems, 1);
}

TEST_F(PlanStep, RefusesWhatCannotBeBeforeItSolves) {
  const auto why = [](ShardingRequest request) -> std::string {
    request.problem = [](const ShardingProblem&) { ADD_FAILURE() << "a problem was made first"; };
    try {
      shard_step(clone(llama_step()), request);
    } catch (const Error& error) {
      return error.what();
    }
    return "it is planned";
  };
  EXPECT_THAT(why({}), HasSubstr("ShardingRequest::mesh"));
  ShardingRequest request = on_mesh("2");
  request.rank = 2;
  EXPECT_THAT(why(request), HasSubstr("rank 2 is not in mesh"));
  request.rank = -1;
  EXPECT_THAT(why(request), HasSubstr("rank -1 is not in mesh"));
  request.rank = 0;
  request.recompute = true;
  EXPECT_THAT(why(request), HasSubstr("ShardingRequest::memory"));
}

TEST_F(PlanStep, NamesTheDeviceThatNothingIsKnownOf) {
  Graph graph = clone(llama_step());
  graph.metadata.device = c10::Device(c10::kMPS, 0);
  EXPECT_THAT(
      [&] { shard_step(clone(graph), on_mesh("2")); },
      ::testing::ThrowsMessage<Error>(AllOf(HasSubstr("mps devices have no default spec"), HasSubstr("--spec"))));
  ShardingRequest request = on_mesh("2");
  request.memory = 1000;
  EXPECT_THROW(shard_step(clone(llama_step()), request), InfeasibleError) << "what no plan can do is no bad request";
}

}  // namespace
}  // namespace shadowgraph
