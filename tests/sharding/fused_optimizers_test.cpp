// Fused and foreach optimizers: plans, sharded graphs and numerics are the same as for single-tensor optimizers.
#include <gtest/gtest.h>

#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/shard/problem.h"
#include "shadowgraph/shard/shard.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

struct Case {
  const char* name;
  const char* model;
  StepOptimizer optimizer;
  int warmup_steps = 1;
};

class FusedOptimizers : public ::testing::TestWithParam<Case> {};

TEST_P(FusedOptimizers, ArePlannedAndRightAsTensorByTensor) {
  const DeviceSpec device = DeviceSpec::named("h100");
  const Interconnect links = Interconnect::named("h100");
  CapturedStep step = capture_step(GetParam().model, GetParam().optimizer, 4, 0, GetParam().warmup_steps);
  split_mean_losses(step.graph);
  const WholeRun whole = run_whole(step);
  for (const char* mesh : {"2", "2x2"}) {
    SCOPED_TRACE(mesh);
    const ShardingOptions options{.mesh = DeviceMesh::parse(mesh), .device = &device, .interconnect = &links};
    const ShardingResult answer = shard(step.graph, options, {.compare = true});
    ASSERT_FALSE(answer.compared.empty());
    for (const ParallelismCost& plan : answer.compared) {
      ASSERT_TRUE(plan.seconds.has_value()) << plan.name << ": " << plan.why_not;
      EXPECT_LE(answer.seconds(), *plan.seconds * (1 + 1e-9)) << plan.name;
    }
    EXPECT_EQ(answer.peak, peak_of_live_bytes(answer.rank->graph));
    EXPECT_EQ(answer.assumed_peak, answer.peak);
    // The optimal plan of a tiny step shards little, so hand-written plans shard parameters and optimizer state.
    const ShardingProblem problem = ShardingProblem::of(step.graph, options);
    std::vector<GraphLayouts> plans{answer.plan};
    for (const Parallelism hand : parallelisms(options.mesh)) {
      const AssignmentProblem pinned = problem.pinned(pins_of(hand, step.graph, problem, options.mesh));
      const AssignmentSolution solution = solve(pinned);
      ASSERT_TRUE(solution.feasible) << to_string(hand) << ": " << solution.why_infeasible;
      plans.push_back(problem.plan(solution.choice));
      const int64_t peak = peak_of_live_bytes(apply(step.graph, plans.back(), 0).graph);
      EXPECT_NEAR(static_cast<double>(solution.peak), static_cast<double>(peak), 0.02 * static_cast<double>(peak))
          << to_string(hand);
    }
    for (const GraphLayouts& plan : plans) {
      const std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
      for (const ShardedGraph& rank : ranks) verify(rank.graph);
      worst_difference(whole, simulate(ranks, step.inputs));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, FusedOptimizers,
                         ::testing::Values(Case{"gpt2_fused_adamw", "gpt2", StepOptimizer::kFusedAdamW},
                                           Case{"gpt2_fused_adamw_first", "gpt2", StepOptimizer::kFusedAdamW, 0},
                                           Case{"gpt2_fused_adam", "gpt2", StepOptimizer::kFusedAdam},
                                           Case{"gpt2_fused_sgd", "gpt2", StepOptimizer::kFusedSgd},
                                           Case{"gpt2_foreach_adamw", "gpt2", StepOptimizer::kForeachAdamW},
                                           Case{"bert_fused_adamw", "bert_base", StepOptimizer::kFusedAdamW},
                                           Case{"bert_foreach_adamw", "bert_base", StepOptimizer::kForeachAdamW}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shadowgraph
