// Expert parallel: memory and communication of one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/recompute.h"
#include "sharding/ranks/ranks.h"
#include "tests/sharding/captured_step.h"

namespace shadowgraph {
namespace {

Graph deepseek(const std::string& recomputed = "") {
  Graph step = capture_tiny_deepseek();
  if (!recomputed.empty()) checkpoint_modules(step, {.modules = recomputed});
  return step;
}

// Returns the number of all_to_alls by payload bytes.
std::map<int64_t, int> sent(const Graph& graph) {
  std::map<int64_t, int> bytes;
  for (const NodeId node : nodes_calling(graph, "_c10d_functional::all_to_all_single")) {
    ++bytes[graph.logical_bytes(graph.find_argument(node, "input")->ref.value)];
  }
  return bytes;
}

// Tiny model: 2 x 16 tokens, two of eight experts each, 32 wide, in two of three layers.
constexpr int64_t kRows = 2 * 16 * 2, kRowBytes = 2 * 32, kEnds = 4 * 8;

TEST(ExpertRanks, AreOfEveryLayer) {
  const ExpertLayers layers = expert_layers(deepseek());
  EXPECT_EQ(layers.experts, 8);
  EXPECT_EQ(layers.rows, kRows);
}

TEST(ExpertRanks, RowsGoThereAndBackInBothPasses) {
  const Graph rank = shard_experts_over(deepseek(), {.ranks = 4});
  verify(rank);
  // Two in forward and two in backward per layer, plus the exchange of counts.
  EXPECT_THAT(sent(rank), ::testing::UnorderedElementsAre(std::pair(kRows * kRowBytes, 8), std::pair(kEnds, 2)));
}

TEST(ExpertRanks, WhatIsComputedAgainIsSentAgain) {
  const Graph rank = shard_experts_over(deepseek("model.layers.1+model.layers.2"), {.ranks = 4});
  verify(rank);
  EXPECT_EQ(sent(rank)[kRows * kRowBytes], 2 * (2 + 2 + 2));
}

TEST(ExpertRanks, ExpertsAndTheirGradientsAreThoseOfTheRank) {
  const Graph whole = deepseek();
  for (const int64_t ranks : {2, 4, 8}) {
    const Graph rank = shard_experts_over(clone(whole), {.ranks = ranks});
    int64_t experts = 0;
    for (const NodeId node : rank.nodes()) {
      if (rank.is_placeholder(node) && is_of_experts(rank, node)) {
        experts += rank.numel(rank.results(node)[0].ref.value);
      }
    }
    EXPECT_EQ(experts, int64_t{2} * 8 * 3 * 16 * 32 / ranks);
    for (const NodeId node : nodes_calling(rank, "aten::_grouped_mm")) {
      const ValueId made = rank.results(node)[0].ref.value;
      EXPECT_EQ(rank.sizes(made)[0], rank.sizes(made).size() == 3 ? 8 / ranks : kRows);
    }
  }
}

// Received tensors are saved instead of sent ones; no other lifetime gets longer.
TEST(ExpertRanks, NothingLivesLonger) {
  const Graph whole = deepseek(), rank = shard_experts_over(clone(whole), {.ranks = 8});
  const auto at_end = [](const Graph& graph) {
    int64_t bytes = 0;
    for (uint32_t i = 0; i < graph.storage_count(); ++i) {
      const Storage& storage = graph.storage(StorageId(i));
      if (storage.born.valid() && !graph.is_placeholder(storage.born) && !storage.freed_after.valid()) {
        bytes += storage.bytes;
      }
    }
    return bytes;
  };
  // Only gradients remain allocated; a rank has an eighth of the expert gradients.
  EXPECT_EQ(at_end(whole) - at_end(rank), int64_t{2} * 8 * 3 * 16 * 32 * 2 * 7 / 8);
}

TEST(ExpertRanks, RoomForMoreRowsIsSentAndComputed) {
  const Graph rank = shard_experts_over(deepseek(), {.ranks = 4, .capacity = 1.5});
  verify(rank);
  EXPECT_EQ(sent(rank)[kRows * kRowBytes * 3 / 2], 8);
  for (const NodeId node : nodes_calling(rank, "aten::_grouped_mm")) {
    const ValueId made = rank.results(node)[0].ref.value;
    if (rank.sizes(made).size() == 3) continue;
    EXPECT_EQ(rank.sizes(made)[0], kRows * 3 / 2);
  }
}

TEST(ExpertRanks, TheGroupLeavesRoomForTensorParallel) {
  const Graph rank = shard_experts_over(deepseek(), {.ranks = 4, .apart = 2});
  const std::vector<ProcessGroupInfo> groups = process_groups(rank);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_THAT(groups[0].ranks, ::testing::ElementsAre(0, 2, 4, 6));
}

TEST(ExpertRanks, WhatDoesNotDivideIsRefused) {
  EXPECT_THROW(shard_experts_over(deepseek(), {.ranks = 3}), Error);
  EXPECT_THROW(shard_experts_over(deepseek(), {.ranks = 16}), Error);
}

}  // namespace
}  // namespace shadowgraph
