// Overlap of tensor-parallel collectives with matrix products: same numerics, less time, sharded saved tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <utility>

#include "models/program.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/shard.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

constexpr std::array kBoth{CollectiveOverlap::kBackward, CollectiveOverlap::kPieces};

Sharding megatron(const Graph& step, const char* mesh) {
  ShardingRequest layout{
      .mesh = DeviceMesh::parse(mesh), .device = DeviceSpec::named("h100"), .parallelism = "megatron"};
  return shard_step(clone(step), layout);
}

Sharding solved(const Graph& step, const char* mesh, CollectiveOverlap overlap, bool shard_vocabulary = true) {
  ShardingRequest layout{.mesh = DeviceMesh::parse(mesh),
                         .device = DeviceSpec::named("h100"),
                         .shard_vocabulary = shard_vocabulary,
                         .overlap = overlap};
  return shard_step(clone(step), layout);
}

// A layer wide enough for overlap to be cost-effective.
Graph wide_step(int64_t batch = 1, const std::string& recomputed = "") {
  const FakeTensorMode mode({.device = at::kCUDA});
  const models::BuiltModel model =
      models::build("llama3_8b", {.batch = batch, .seq = 8192, .layers = 2, .dtype = at::kBFloat16});
  Graph step = capture_training_step(models::program_of(model)).graph;
  if (!recomputed.empty()) checkpoint_modules(step, {.modules = recomputed});
  return step;
}

Graph rank_of(const Graph& step, const char* mesh) {
  ShardingRequest layout{.mesh = DeviceMesh::parse(mesh),
                         .device = DeviceSpec::named("h100"),
                         .shard_vocabulary = true,
                         .parallelism = "megatron"};
  return std::move(shard_step(clone(step), layout).result.rank->graph);
}

struct Seconds {
  explicit Seconds(const Graph& graph)
      : links(Interconnect::named("h100")),
        communication(Communication::of(graph, {.interconnect = &links})),
        time(StepTime::of(graph, DeviceSpec::named("h100"))),
        step(OverlappedStep::of(graph, communication, time)) {}
  Interconnect links;
  Communication communication;
  StepTime time;
  OverlappedStep step;
};

// ---- Values

class OverlappedModels : public ::testing::TestWithParam<std::string> {};

TEST_P(OverlappedModels, ComputeWhatOneDeviceDoes) {
  for (const char* mesh : {"tp=2", "tp=4"}) {
    const CapturedStep step = capture_step(GetParam(), StepOptimizer::kAdamW, 2);
    const WholeRun whole = run_whole(step);
    const Sharding planned = megatron(step.graph, mesh);
    for (const CollectiveOverlap overlap : kBoth) {
      SCOPED_TRACE(std::string(mesh) + " " + std::string(to_string(overlap)));
      std::vector<ShardedGraph> ranks = apply_to_all(planned.graph, planned.result.plan);
      for (ShardedGraph& rank : ranks) {
        const OverlapResult done = overlap_collectives(rank.graph, overlap);
        EXPECT_GT(done.overlapped_reductions, 0);
        const auto broken = violations(rank.graph);
        ASSERT_TRUE(broken.empty()) << broken.size() << " broken rules, first: " << broken.front().message;
      }
      EXPECT_LT(worst_difference(whole, simulate(ranks, step.inputs)), 1e-10);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Zoo, OverlappedModels, ::testing::Values("gpt2", "llama3_8b"),
                         [](const auto& info) { return info.param; });

TEST_P(OverlappedModels, AsTheSolverLaysThemOutComputeWhatOneDeviceDoes) {
  const CapturedStep step = capture_step(GetParam(), StepOptimizer::kAdamW, 2);
  const WholeRun whole = run_whole(step);
  for (const CollectiveOverlap overlap : kBoth) {
    const Sharding planned = solved(step.graph, "tp=4", overlap, /*shard_vocabulary=*/false);
    std::vector<ShardedGraph> ranks = apply_to_all(planned.graph, planned.result.plan);
    for (ShardedGraph& rank : ranks) {
      overlap_collectives(rank.graph, overlap);
      verify(rank.graph);
    }
    EXPECT_LT(worst_difference(whole, simulate(ranks, step.inputs)), 1e-10) << to_string(overlap);
  }
}

TEST(Overlap, OfStepsThatComputeAgainComputesWhatOneDeviceDoes) {
  CapturedStep step = capture_step("llama3_8b", StepOptimizer::kSgd, 2);
  const WholeRun whole = run_whole(step);
  checkpoint_modules(step.graph, {.modules = "model.layers.*"});
  const Sharding planned = megatron(step.graph, "tp=2");
  for (const CollectiveOverlap overlap : kBoth) {
    std::vector<ShardedGraph> ranks = apply_to_all(planned.graph, planned.result.plan);
    for (ShardedGraph& rank : ranks) {
      overlap_collectives(rank.graph, overlap);
      verify(rank.graph);
    }
    EXPECT_LT(worst_difference(whole, simulate(ranks, step.inputs)), 1e-10);
  }
}

// ---- What changes

TEST(Overlap, SumsRunBesideWeightGradientsAndPartsAreKept) {
  const Graph step = wide_step();
  const Graph before = rank_of(step, "tp=8");
  Graph rank = clone(before);
  const OverlapResult done = overlap_collectives(rank, CollectiveOverlap::kBackward);
  verify(rank);
  // Two reductions per layer (of Q, K, V and of gate and up), and one of the head.
  EXPECT_EQ(done.overlapped_reductions, 5);
  EXPECT_EQ(done.regathered, 5);
  EXPECT_EQ(done.in_pieces, 0);
  const Seconds one(before), other(rank);
  EXPECT_NEAR(one.step.exposed(), one.step.communication(), 1e-9);
  // Overlapped collectives slow the device down; repeated all-gathers are overlapped, too.
  EXPECT_LT(other.step.seconds(), one.step.seconds());
  // A layer saves an eighth of two inputs of 64 MiB; those of the last layer are freed by the time of the peak.
  EXPECT_LE(peak_of_live_bytes(rank), peak_of_live_bytes(before));
}

TEST(Overlap, ProductsGoInPiecesWhereRowsLieTogether) {
  for (const int64_t batch : {1, 2}) {
    Graph rank = rank_of(wide_step(batch), "tp=4");
    const OverlapResult done = overlap_collectives(rank, CollectiveOverlap::kPieces);
    EXPECT_EQ(done.overlapped_reductions, 2 * 2 + 1);
    // With two samples, sequences are copied before they are sent.
    EXPECT_EQ(done.regathered, batch == 1 ? 2 * 2 + 1 : 0);
    // In forward, a layer gathers two inputs and reduce-scatters two results; in backward, it gathers two gradients.
    // The head gathers one input.
    EXPECT_EQ(done.in_pieces, batch == 1 ? 2 * 6 + 1 : 0);
    int64_t noted = 0;
    for (const NodeId node : rank.nodes()) noted += rank.note(node, "pieces") == "4" ? 1 : 0;
    EXPECT_EQ(noted, 2 * done.in_pieces);
  }
}

// Counts storages that stay allocated for more than 50 nodes after their last use. A sent tensor is in use until the
// wait.
int64_t lingering(const Graph& graph) {
  std::map<StorageId, int64_t> last;
  int64_t at = 0, count = 0;
  for (const NodeId node : graph.nodes()) {
    const auto touch = [&](ValueId v) { last[graph.value(v).storage] = at; };
    graph.for_each_input(node, touch);
    graph.for_each_output(node, touch);
    if (graph.target(node).name() == "_c10d_functional::wait_tensor") {
      graph.for_each_input(graph.value(graph.arguments(node)[0].ref.value).producer, touch);
    }
    ++at;
  }
  at = 0;
  for (const NodeId node : graph.nodes()) {
    for (const StorageId storage : graph.frees(node)) count += at > last[storage] + 50 ? 1 : 0;
    ++at;
  }
  return count;
}

TEST(Overlap, MemoryDoesNotWaitForWhoGoesElsewhere) {
  const Graph before = rank_of(wide_step(1, "model.layers.0"), "tp=4");
  for (const CollectiveOverlap overlap : kBoth) {
    Graph rank = clone(before);
    overlap_collectives(rank, overlap);
    EXPECT_LE(lingering(rank), lingering(before)) << to_string(overlap);
  }
}

TEST(Overlap, NothingTakesLongerThanBefore) {
  for (const char* mesh : {"tp=2", "tp=4", "tp=8"}) {
    for (const auto& [batch, recomputed] : {std::pair<int64_t, std::string>{1, ""}, {2, ""}, {1, "model.layers.*"}}) {
      const Graph before = rank_of(wide_step(batch, recomputed), mesh);
      double most = Seconds(before).step.seconds();
      for (const CollectiveOverlap overlap : kBoth) {
        Graph rank = clone(before);
        overlap_collectives(rank, overlap);
        verify(rank);
        const double seconds = Seconds(rank).step.seconds();
        EXPECT_LE(seconds, most) << mesh << " " << batch << " " << recomputed << " " << to_string(overlap);
        most = seconds;
      }
    }
  }
}

// For the solver, a collective costs only its exposed time. Its plan is then at least as fast as Megatron's and as the
// plan found without modeling overlap.
TEST(Overlap, TheSolverKnowsWhatIsHidden) {
  for (const int64_t batch : {1, 2}) {
    const Graph step = wide_step(batch);
    for (const CollectiveOverlap overlap : kBoth) {
      const auto seconds = [&](Graph rank) {
        overlap_collectives(rank, overlap);
        return Seconds(rank).step.seconds();
      };
      const double found = seconds(std::move(solved(step, "tp=8", overlap).result.rank->graph));
      EXPECT_LT(found, seconds(rank_of(step, "tp=8"))) << batch << " " << to_string(overlap);
      EXPECT_LE(found, 1.001 * seconds(std::move(solved(step, "tp=8", CollectiveOverlap::kNone).result.rank->graph)))
          << batch << " " << to_string(overlap);
    }
  }
}

// Eight samples on eight ranks: each rank has one, and weight gradients are reduced over all of them.
TEST(Overlap, SumsOfGradientsDoNotPileUp) {
  const Sharding planned = solved(wide_step(8), "tp=8", CollectiveOverlap::kBackward);
  const Graph& before = planned.result.rank->graph;
  for (const CollectiveOverlap overlap : kBoth) {
    Graph rank = clone(before);
    overlap_collectives(rank, overlap);
    EXPECT_LE(static_cast<double>(peak_of_live_bytes(rank)), 1.05 * static_cast<double>(peak_of_live_bytes(before)))
        << to_string(overlap);
  }
}

TEST(Overlap, NoneLeavesAProgramAsItIs) {
  Graph rank = rank_of(wide_step(), "tp=2");
  const Graph before = clone(rank);
  const OverlapResult done = overlap_collectives(rank, CollectiveOverlap::kNone);
  EXPECT_EQ(done.overlapped_reductions + done.regathered + done.in_pieces, 0);
  EXPECT_EQ(to_text(rank), to_text(before));
}

TEST(Overlap, NamesAreTheirs) {
  for (const char* name : {"none", "backward", "pieces"})
    EXPECT_EQ(to_string(parse<CollectiveOverlap>(name, "overlap")), name);
  try {
    parse<CollectiveOverlap>("all", "overlap");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("none, backward, pieces"));
  }
}

}  // namespace
}  // namespace shadowgraph
