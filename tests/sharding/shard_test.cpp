// Plans for captured steps: no worse than hand-written plans, exact memory of the applied graph, and memory limits.
#include "shadowgraph/shard/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

Graph step_to_shard(const std::string& name, bool tiny = true) {
  const FakeTensorMode mode({.device = at::kCUDA});
  models::BuiltModel model = models::build(name, {.tiny = tiny});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions());
  Graph graph = capture_training_step(models::program_of(model, &optimizer)).graph;
  split_mean_losses(graph);
  return graph;
}

class Sharding : public ::testing::TestWithParam<std::string> {
 protected:
  ShardingOptions options(const char* mesh) const {
    return {.mesh = DeviceMesh::parse(mesh), .device = &device_, .interconnect = &links_};
  }
  DeviceSpec device_ = DeviceSpec::named("h100");
  Interconnect links_ = Interconnect::named("h100");
};

TEST_P(Sharding, IsNotWorseThanPlansByHandAndKnowsItsPeak) {
  const Graph graph = step_to_shard(GetParam());
  for (const char* mesh : {"2", "2x2"}) {
    const ShardingResult answer = shard(graph, options(mesh), {.compare = true});
    EXPECT_TRUE(answer.solution.feasible);
    EXPECT_LE(answer.bound, answer.seconds() * (1 + 1e-9));
    // Plan costs are whole picoseconds: the cost of each node may be rounded up.
    EXPECT_LE(answer.seconds(), answer.alone + 1e-12 * graph.node_count()) << "one device alone is a plan, too";
    ASSERT_FALSE(answer.compared.empty());
    for (const ParallelismCost& plan : answer.compared) {
      ASSERT_TRUE(plan.seconds.has_value()) << plan.name << ": " << plan.why_not;
      EXPECT_LE(answer.seconds(), *plan.seconds * (1 + 1e-9)) << plan.name << " on " << mesh;
    }
    verify(answer.rank->graph);
    EXPECT_EQ(answer.peak, peak_of_live_bytes(answer.rank->graph));
    EXPECT_EQ(answer.assumed_peak, answer.peak) << mesh;
  }
}
INSTANTIATE_TEST_SUITE_P(Zoo, Sharding, ::testing::Values("gpt2", "llama3_8b", "bert_base", "resnet18", "vit_b_16"));

class ShardingOfLlama : public Sharding {};

// The claims of README and docs: identical layers share a layout, memory is within its limit, alternatives are listed.
TEST_F(ShardingOfLlama, KeepsWithinMemoryOrSaysWhyNot) {
  const Graph graph = step_to_shard("llama3_8b");
  const ShardingResult free = shard(graph, options("4"));
  ShardingOptions limited = options("4");
  limited.memory = free.peak - free.peak / 20;
  const ShardingResult tight = shard(graph, limited);
  EXPECT_LE(tight.peak, limited.memory);
  EXPECT_GE(tight.seconds(), free.seconds() * (1 - 1e-9));
  limited.memory = 1000;
  try {
    shard(graph, limited);
    FAIL() << "nothing fits into 1000 bytes";
  } catch (const InfeasibleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1000"));
  }
}

TEST_F(ShardingOfLlama, ExplainsWhatElseAParameterCouldBe) {
  const Graph graph = step_to_shard("llama3_8b");
  const ShardingResult answer = shard(graph, options("2"), {.explain = {"model.layers.0.mlp.up_proj.weight"}});
  ASSERT_EQ(answer.explanations.size(), 1u);
  const Explanation& explanation = answer.explanations[0];
  EXPECT_EQ(explanation.alternatives.size(), 3u);  // R, S(0), S(1)
  EXPECT_TRUE(explanation.alternatives[0].chosen);
  for (const Alternative& alternative : explanation.alternatives) {
    ASSERT_TRUE(alternative.seconds.has_value());
    EXPECT_GE(*alternative.seconds, answer.seconds() * (1 - 1e-9)) << alternative.strategy;
  }
  EXPECT_THROW(shard(graph, options("2"), {.explain = {"no.such.thing"}}), Error);
  const std::string text = to_text(answer);
  EXPECT_THAT(text, HasSubstr("model.layers.#.mlp.up_proj.weight"));
  EXPECT_THAT(text, HasSubstr("2 devices"));
  const nlohmann::json json = to_json(answer);
  EXPECT_EQ(json["explanations"][0]["alternatives"].size(), 3u);
  EXPECT_EQ(json["tensors"].size(), answer.placeholders.size());
}

}  // namespace
}  // namespace shadowgraph
