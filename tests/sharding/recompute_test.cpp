// Alternates sharding and recomputation: memory fits with both, cost is never worse than with one, numerics are the
// same.
#include "shadowgraph/passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include "models/program.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/shard/shard.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

class ShardAndRecompute : public ::testing::Test {
 protected:
  ShardingOptions options(const char* mesh, int64_t memory) const {
    return {.mesh = DeviceMesh::parse(mesh), .device = &device_, .interconnect = &links_, .memory = memory};
  }
  static const Graph& gpt2() {
    static const Graph graph = [] {
      const FakeTensorMode mode({.device = at::kCUDA});
      const models::BuiltModel model = models::build("gpt2", {.batch = 8, .seq = 512, .dtype = at::kBFloat16});
      torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions());
      Graph captured = capture_training_step(models::program_of(model, &optimizer)).graph;
      split_mean_losses(captured);
      return captured;
    }();
    return graph;
  }
  // Invariants of every solution.
  void check(const Sharding& found, int64_t memory) const {
    verify(found.graph);
    verify(found.result.rank->graph);
    EXPECT_EQ(found.result.peak, peak_of_live_bytes(found.result.rank->graph));
    EXPECT_LE(found.result.peak, memory);
    int taken = 0;
    for (const RecomputeRound& round : found.rounds) {
      taken += round.best ? 1 : 0;
      EXPECT_EQ(round.fits, round.why_not.empty() && round.peak <= memory) << round.what;
      if (round.fits) {
        EXPECT_LE(found.result.seconds(), round.seconds * (1 + 1e-9)) << round.what;
      }
      if (round.best) {
        EXPECT_EQ(round.peak, found.result.peak);
      }
    }
    EXPECT_EQ(taken, 1);
  }
  static const RecomputeRound& round(const Sharding& found, const std::string& what) {
    for (const RecomputeRound& round : found.rounds) {
      if (round.what == what) return round;
    }
    throw Error("no round is called " + what);
  }
  DeviceSpec device_ = DeviceSpec::named("h100");
  Interconnect links_ = Interconnect::named("h100");
};

// 1.5 GB per device: the logits of half the batch alone take 2 x 412 MB.
TEST_F(ShardAndRecompute, FitWhereShardingAloneDoesNot) {
  const int64_t memory = 1'500'000'000;
  const Sharding found = shard_and_recompute(gpt2(), options("2", memory));
  check(found, memory);
  EXPECT_FALSE(round(found, "sharding only").fits);
  EXPECT_LE(found.result.seconds(), round(found, "recompute only").seconds * (1 + 1e-9));
  EXPECT_FALSE(found.segments.empty());
  EXPECT_GT(found.graph.node_count(), gpt2().node_count());
  EXPECT_THROW(shard(gpt2(), options("2", memory)), InfeasibleError);
  const nlohmann::json json = to_json(found);
  EXPECT_EQ(json["recompute"]["rounds"].size(), found.rounds.size());
  EXPECT_THAT(to_text(found), HasSubstr("recompute only"));
}

TEST_F(ShardAndRecompute, IsNeverWorseThanOneOfThem) {
  for (const int64_t memory : {int64_t{2'000'000'000}, int64_t{2'300'000'000}, int64_t{10'000'000'000}}) {
    const Sharding found = shard_and_recompute(gpt2(), options("2", memory));
    check(found, memory);
    try {
      const ShardingResult alone = shard(gpt2(), options("2", memory));
      EXPECT_LE(found.result.seconds(), alone.seconds() * (1 + 1e-9)) << memory;
    } catch (const InfeasibleError&) {
      EXPECT_FALSE(round(found, "sharding only").fits);
    }
    if (memory == 10'000'000'000) {
      EXPECT_TRUE(found.segments.empty()) << "all of it fits";
    }
  }
}

TEST_F(ShardAndRecompute, RanksComputeWhatOneDeviceDoes) {
  const CapturedStep step = capture_step("gpt2", StepOptimizer::kAdamW, 4);
  const int64_t memory = peak_of_live_bytes(step.graph) * 6 / 10;
  ShardingOptions cut = options("2", memory);
  const Sharding found = shard_and_recompute(step.graph, cut);
  check(found, memory);
  worst_difference(run_whole(step), simulate(apply_to_all(found.graph, found.result.plan), step.inputs));
  // The step with everything recomputed that can be.
  Graph again = clone(step.graph);
  ASSERT_GT(checkpoint_modules(again, {.modules = "auto"}).recomputed, 0);
  const ShardingResult cut_in_half = shard(again, options("2", memory));
  worst_difference(run_whole(step), simulate(apply_to_all(again, cut_in_half.plan), step.inputs));
}

// A plan of the original step stays valid for the step with recomputation.
TEST_F(ShardAndRecompute, WhatIsRepeatedLiesAsItDid) {
  const ShardingResult plain = shard(gpt2(), options("2", kNoLimit));
  Graph again = clone(gpt2());
  ASSERT_GT(checkpoint_modules(again, {.modules = "auto"}).recomputed, 100);
  const GraphLayouts plan = with_repeated(plain.plan, again);
  const ShardingResult measured = shard(again, options("2", kNoLimit), {.plan = &plan});
  EXPECT_GT(measured.compute, plain.compute);
  EXPECT_LT(measured.peak, plain.peak);
  for (const NodeId node : again.nodes()) {
    const NodeId forward = again.node(node).forward;
    if (!is_recompute_region(again, again.node(node).region) || !forward.valid()) continue;
    EXPECT_EQ(plan.nodes[node].results.size(), plan.nodes[forward].results.size());
    for (size_t i = 0; i < plan.nodes[node].results.size(); ++i) {
      EXPECT_EQ(plan.nodes[node].results[i], plan.nodes[forward].results[i]);
    }
  }
}

TEST_F(ShardAndRecompute, SaysWhyNothingFits) {
  const auto why = [&](int64_t memory) -> std::string {
    try {
      shard_and_recompute(gpt2(), options("2", memory));
    } catch (const Error& error) {
      return error.what();
    }
    return "it fits";
  };
  EXPECT_THAT(why(kNoLimit), HasSubstr("--memory"));
  EXPECT_THAT(why(100'000'000), HasSubstr("no plan fits into 95.37 MiB per device, with or without recompute"));
  EXPECT_THAT(why(100'000'000), HasSubstr("per device with maximum recompute"));
}

}  // namespace
}  // namespace shadowgraph
