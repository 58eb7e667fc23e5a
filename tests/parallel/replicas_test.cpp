// Data-parallel replicas of a pipeline: ZeRO sharding, communication, and overlap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

const DeviceSpec& spec() {
  static const DeviceSpec h100 = DeviceSpec::named("h100");
  return h100;
}
const Interconnect& h100_links() {
  static const Interconnect links = Interconnect::named("h100");
  return links;
}

// 1,000,000 weights in bfloat16, bfloat16 gradients, no optimizer state.
StageCosts million() {
  return {.forward = 2e-3,
          .input_gradient = 3e-3,
          .weight_gradient = 1e-3,
          .accumulate = 3e-6,
          .weights = 1'000'000,
          .parameters = 2'000'000,
          .gradients = 2'000'000,
          .carried = 500};
}

PipelineStages replicas_of_million(int zero, int64_t bucket = 0, int64_t count = 8) {
  return replicated(PipelineStages::of_costs({million()}),
                    {.count = count, .zero = zero, .bucket = bucket, .state = kMixedPrecision}, spec(), &h100_links());
}

int64_t resident(const PipelineStages& stages) {
  const auto one = PipelineSchedule::named("1f1b", {.ranks = 1, .microbatches = 1});
  return PipelineRun::of(stages, one).rank(0).resident;
}

TEST(Replicas, ZeroCutsStateThenGradientsThenParameters) {
  EXPECT_EQ(resident(replicas_of_million(0)), 2'000'000 + 4'000'000 + 12'000'000);
  EXPECT_EQ(resident(replicas_of_million(1)), 2'000'000 + 4'000'000 + 1'500'000);
  // One bucket of unsharded gradients, in the computed (2 bytes) and the communicated (4 bytes) dtype.
  EXPECT_EQ(resident(replicas_of_million(2, 200'000)), 2'000'000 + 500'000 + 1'500'000 + 600'000);
  // Two buckets of parameters.
  EXPECT_EQ(resident(replicas_of_million(3, 200'000)), 250'000 + 400'000 + 500'000 + 1'500'000 + 600'000);
}

TEST(Replicas, AnOptimizerOnTheHostIsCopiedAndStepsThere) {
  const Replicas replicas{.count = 8, .zero = 1, .optimizer_on_host = true, .state = kMixedPrecision};
  const PipelineStages one = PipelineStages::of_costs({million()});
  const PipelineStages made = replicated(one, replicas, spec(), &h100_links());
  EXPECT_EQ(resident(made), 2'000'000 + 4'000'000);
  EXPECT_EQ(made.of(0).optimizer_state, 0);
  const HostSpec& host = *spec().host;
  const double gradients = 4e6 / 8, parameters = 2e6 / 8, state = 12e6 / 8;
  EXPECT_NEAR(made.of(0).optimizer,
              (gradients + parameters) / host.link + (gradients + 2 * state + parameters) / host.bandwidth, 1e-9);
  DeviceSpec alone = spec();
  alone.host.reset();
  EXPECT_THROW(replicated(one, replicas, alone, &h100_links()), Error);
  Replicas captured = replicas;
  captured.state = {};
  EXPECT_THROW(replicated(one, captured, spec(), &h100_links()), Error);
}

TEST(Replicas, AnOptimizerReadsGradientsAsTheyAreKept) {
  const double gradients = 4e6 / 8, parameters = 2e6 / 8, state = 12e6 / 8;
  EXPECT_NEAR(replicas_of_million(1).of(0).optimizer, (gradients + 2 * state + parameters) / spec().bandwidth, 1e-12);
}

TEST(Replicas, APieceTakesAsLongAsItsCopies) {
  StageCosts of = million();
  const auto seconds = [&](double copies) {
    of.copies = {copies, copies, copies, 0};
    const auto four = PipelineSchedule::named("1f1b", {.ranks = 1, .microbatches = 4});
    return PipelineRun::of(PipelineStages::of_costs({of}), four).seconds();
  };
  EXPECT_DOUBLE_EQ(seconds(1e-3), seconds(0));
  // A forward of 2 ms waits for one millisecond, a backward of 4 ms does not wait.
  EXPECT_NEAR(seconds(3e-3), seconds(0) + 4e-3, 1e-5);
}

TEST(Replicas, WithoutAStateTheCapturedOneIsCut) {
  StageCosts of = million();
  of.optimizer_state = 8'000'000;
  const PipelineStages one = PipelineStages::of_costs({of});
  const PipelineStages cut = replicated(one, {.count = 8, .zero = 1}, spec(), &h100_links());
  EXPECT_EQ(cut.of(0).optimizer_state, 1'000'000);
  EXPECT_EQ(cut.of(0).gradients, of.gradients);
  EXPECT_EQ(resident(cut), 2'000'000 + 1'000'000);
}

TEST(Replicas, GradientsThatAreAddedInFloat32MoveMore) {
  // Reads 2 bytes and reads and writes 4, where the capture moved 3 times 2.
  EXPECT_DOUBLE_EQ(replicas_of_million(1).of(0).accumulate, 3e-6 * 10 / 6);
}

double all_gather_seconds(int64_t bytes) {
  return collective_cost(CollectiveKind::kAllGather, bytes, {.name = "dp", .size = 8}, h100_links()).seconds();
}

TEST(Replicas, WhatForwardHidesCostsWhatItTakesOfTheDevice) {
  const double all = 10 * all_gather_seconds(200'000);
  ASSERT_LT(all, million().forward);
  const double expected = 0.1 * all + h100_links().device_share * 0.9 * all;
  EXPECT_NEAR(replicas_of_million(1, 200'000).of(0).unshard, expected, 1e-12);
  // Once per step, or in each micro-batch.
  EXPECT_NEAR(replicas_of_million(3, 200'000).of(0).forward, 2e-3 + expected, 1e-12);
  EXPECT_EQ(replicas_of_million(3, 200'000).of(0).unshard, 0);
}

TEST(Replicas, OneReplicaSendsNothing) {
  const StageCosts alone = replicas_of_million(0, 0, 1).of(0);
  EXPECT_EQ(alone.unshard, 0);
  EXPECT_EQ(alone.reduce_gradients, 0);
  EXPECT_EQ(alone.forward, 2e-3);
}

TEST(Replicas, WhatMakesNoSenseIsRefused) {
  EXPECT_THROW(replicas_of_million(4), Error);
  EXPECT_THROW(replicas_of_million(1, 0, 0), Error);
}

TEST(WithSums, GathersBeforeTheFirstActionAndAddsBehindTheLast) {
  const PipelineSchedule schedule =
      with_gradient_reduction(PipelineSchedule::named("1f1b", {.ranks = 2, .microbatches = 3}));
  EXPECT_EQ(to_string(schedule.of(0).front()), "0UNSHARD");
  EXPECT_EQ(to_string(schedule.of(0).back()), "0REDUCE_GRAD");
  EXPECT_EQ(schedule.of(1).size(), 2 * 3 + 2);
}

TEST(WithSums, LeavesActionsThatOverlapTogether) {
  const PipelineSchedule bare =
      PipelineSchedule::named("dualpipe_v", {.ranks = 2, .stages_per_rank = 2, .microbatches = 6});
  const PipelineSchedule schedule = with_gradient_reduction(bare);
  for (int32_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(schedule.of(rank).size(), bare.of(rank).size() + 4);
    for (size_t i = 0; i + 1 < schedule.of(rank).size(); ++i) {
      EXPECT_TRUE(!schedule.of(rank)[i].overlaps_next || computes(schedule.of(rank)[i + 1]));
    }
  }
}

}  // namespace
}  // namespace shadowgraph
