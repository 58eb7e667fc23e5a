// Recomputation within sharded steps: numerics match one device, and expensive results are kept.
#include <gtest/gtest.h>

#include "parallel/plan/recompute.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/shard/shard.h"
#include "sharding/ranks/ranks.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kGather = "_c10d_functional::all_gather_into_tensor";

std::vector<std::string> layers_of(const Graph& step) {
  std::vector<std::string> names;
  for (const RegionId region : regions_named(step, "auto")) names.push_back(step.text(step.region(region).name));
  return names;
}

// On a device with slow memory, the solver shards sequences, so that norms take half the time.
Sharding cut_in_half(const Graph& step, const char* parallelism) {
  DeviceSpec slow = DeviceSpec::named("h100");
  slow.bandwidth /= 1e6;
  slow.gpu->stream /= 1e6;
  slow.tables = {};
  return shard_step(clone(step), {.mesh = DeviceMesh::parse("tp=2"),
                                  .device = slow,
                                  .links = Interconnect::named("h100"),
                                  .shard_vocabulary = true,
                                  .parallelism = parallelism});
}

int64_t count(const Graph& graph, std::string_view operation, PhaseId phase) {
  int64_t found = 0;
  for (const NodeId node : graph.nodes()) {
    found += graph.node(node).phase == phase && graph.target(node).name() == operation ? 1 : 0;
  }
  return found;
}

void expect_same(const SimulatedRun& one, const SimulatedRun& other) {
  ASSERT_EQ(one.gradients.size(), other.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    EXPECT_LT(difference(gradient, other.gradients.at(name)), 1e-12) << name;
  }
  for (size_t i = 0; i < one.inputs.size(); ++i) EXPECT_LT(difference(one.inputs[i], other.inputs[i]), 1e-12) << i;
}

struct Cut {
  const char *model, *parallelism;
  bool gathers;
};
class ComputeAgain : public ::testing::TestWithParam<Cut> {};
INSTANTIATE_TEST_SUITE_P(Models, ComputeAgain,
                         ::testing::Values(Cut{"llama3_8b", "megatron", true},
                                           Cut{"bert_base", "tensor-parallel", false}),
                         [](const auto& given) { return std::string(given.param.model); });

TEST_P(ComputeAgain, PartsOfLayers) {
  const CapturedStep step = capture_step(GetParam().model, StepOptimizer::kAdamW, 4);
  const std::vector<std::string> layers = layers_of(step.graph);
  ASSERT_GE(layers.size(), 2U);
  const Sharding planned = cut_in_half(step.graph, GetParam().parallelism);
  std::vector<ShardedGraph> ranks = apply_to_all(planned.graph, planned.result.plan);
  const SimulatedRun kept = simulate(ranks, step.inputs);
  for (ShardedGraph& rank : ranks) {
    const int64_t before = count(rank.graph, "aten::mm", Graph::kBackward);
    const int64_t gathers = count(rank.graph, kGather, Graph::kBackward);
    const int64_t peak = peak_of_live_bytes(rank.graph);
    apply_recompute(rank.graph, {}, layers);
    verify(rank.graph);
    EXPECT_EQ(count(rank.graph, "aten::mm", Graph::kBackward), before) << "products are kept";
    if (GetParam().gathers) {
      EXPECT_GT(count(rank.graph, kGather, Graph::kBackward), gathers) << "they run again";
    }
    EXPECT_LT(peak_of_live_bytes(rank.graph), peak);
  }
  expect_same(kept, simulate(ranks, step.inputs));
}

TEST_P(ComputeAgain, SomeLayersWholeAndPartsOfOthers) {
  const CapturedStep step = capture_step(GetParam().model, StepOptimizer::kAdamW, 4);
  const std::vector<std::string> layers = layers_of(step.graph);
  const Sharding planned = cut_in_half(step.graph, GetParam().parallelism);
  std::vector<ShardedGraph> ranks = apply_to_all(planned.graph, planned.result.plan);
  const SimulatedRun kept = simulate(ranks, step.inputs);
  for (ShardedGraph& rank : ranks) {
    const auto products = [&] {
      return count(rank.graph, "aten::mm", Graph::kBackward) + count(rank.graph, "aten::addmm", Graph::kBackward);
    };
    const int64_t before = products();
    apply_recompute(rank.graph, std::vector{layers.front()}, std::vector{layers.back()});
    EXPECT_GT(products(), before) << "products of the first layer";
    verify(rank.graph);
  }
  expect_same(kept, simulate(ranks, step.inputs));
}

// Only the all-to-all of rows is repeated; results of grouped matrix products are kept.
TEST(ComputeAgainExperts, AreNotComputedAgain) {
  Graph step = capture_tiny_deepseek();
  const int64_t products = count(step, "aten::_grouped_mm", Graph::kBackward);
  ASSERT_GT(products, 0);
  apply_recompute(step, {}, layers_of(step));
  const Graph rank = shard_experts_over(std::move(step), {.ranks = 4});
  verify(rank);
  EXPECT_EQ(count(rank, "aten::_grouped_mm", Graph::kBackward), products);
}

}  // namespace
}  // namespace shadowgraph
