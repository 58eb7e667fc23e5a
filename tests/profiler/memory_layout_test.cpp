// Static memory layouts: simultaneously live storages do not overlap, the lower bound holds, and known optima are
// found.
#include <gtest/gtest.h>

#include <random>

#include "shadowgraph/profile/memory.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

int64_t aligned(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

void expect_valid(const std::vector<AllocationLifetime>& requests, const ArenaLayout& plan, int64_t alignment) {
  ASSERT_EQ(plan.offsets.size(), requests.size());
  EXPECT_GE(plan.bytes, plan.bound);
  int64_t bound = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const AllocationLifetime& a = requests[i];
    ASSERT_GE(plan.offsets[i], 0);
    ASSERT_EQ(plan.offsets[i] % alignment, 0);
    ASSERT_LE(plan.offsets[i] + a.bytes, plan.bytes);
    int64_t together = 0;
    for (size_t j = 0; j < requests.size(); ++j) {
      const AllocationLifetime& b = requests[j];
      if (b.born <= a.born && a.born <= b.last) together += aligned(b.bytes, alignment);
      if (i == j || a.bytes == 0 || b.bytes == 0 || a.last < b.born || b.last < a.born) continue;
      ASSERT_TRUE(plan.offsets[i] + a.bytes <= plan.offsets[j] || plan.offsets[j] + b.bytes <= plan.offsets[i])
          << i << " and " << j << " overlap";
    }
    bound = std::max(bound, together);
  }
  EXPECT_EQ(plan.bound, bound);
}

TEST(MemoryLayout, NestedLivesNeedNoMoreThanTheBound) {
  // Lifetimes of activations in forward and backward, with a temporary at each step.
  std::vector<AllocationLifetime> requests;
  constexpr uint32_t kLayers = 40;
  for (uint32_t i = 0; i < kLayers; ++i) {
    requests.push_back({1000 + 512 * (i % 7), i, 2 * kLayers - i});
    requests.push_back({5000, i, i});
    requests.push_back({7000, 2 * kLayers - i, 2 * kLayers - i});
  }
  const ArenaLayout plan = memory_layout(requests);
  expect_valid(requests, plan, 512);
  EXPECT_EQ(plan.bytes, plan.bound);
}

TEST(MemoryLayout, WhatDoesNotMeetSharesItsPlace) {
  const std::vector<AllocationLifetime> requests = {{1024, 0, 1}, {1024, 2, 3}, {1024, 4, 4}, {0, 0, 4}};
  const ArenaLayout plan = memory_layout(requests, {.alignment = 1});
  expect_valid(requests, plan, 1);
  EXPECT_EQ(plan.bytes, 1024);
}

// The bound is reached only if a gap of exactly the requested size is used.
TEST(MemoryLayout, AGapThatFitsExactlyIsTaken) {
  // Offline, largest first: the last 3 fits between the 3 at 0 and the 3 at 6, without raising the total above 6.
  const std::vector<AllocationLifetime> at_leisure = {{3, 2, 6}, {3, 4, 7}, {3, 4, 4}, {6, 7, 9}};
  EXPECT_EQ(memory_layout(at_leisure, {.alignment = 1}).bytes, 3 + 6);
  EXPECT_EQ(memory_layout(at_leisure, {.alignment = 1, .offline_limit = 0}).bytes, 12);
  // Allocating from both ends: the second 7 reuses the space of the first, below the 1; the 6 comes from above.
  const std::vector<AllocationLifetime> in_order = {{6, 5, 6}, {1, 1, 6}, {7, 6, 9}, {7, 0, 3}};
  const ArenaLayout plan = memory_layout(in_order, {.alignment = 1, .offline_limit = 0});
  EXPECT_EQ(plan.bytes, 6 + 1 + 7);
  expect_valid(in_order, plan, 1);
}

TEST(MemoryLayout, RandomRequestsAreValidForEveryPlanner) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    std::vector<AllocationLifetime> requests;
    for (int i = 0; i < 150; ++i) {
      const uint32_t born = random() % 100;
      const uint32_t life = random() % 4 == 0 ? random() % 100 : random() % 5;
      requests.push_back({static_cast<int64_t>(random() % (1u << (random() % 20))), born, std::min(99u, born + life)});
    }
    const int64_t alignment = int64_t{1} << (random() % 10);
    const ArenaLayout all = memory_layout(requests, {.alignment = alignment});
    expect_valid(requests, all, alignment);
    const ArenaLayout online = memory_layout(requests, {.alignment = alignment, .offline_limit = 0});
    expect_valid(requests, online, alignment);
    EXPECT_LE(all.bytes, online.bytes);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(MemoryLayout, NonsenseIsRefused) {
  EXPECT_THROW(memory_layout({{1, 3, 2}}), Error);
  EXPECT_THROW(memory_layout({{-1, 0, 0}}), Error);
  EXPECT_THROW(memory_layout({{1, 0, 0}}, {.alignment = 3}), Error);
  EXPECT_EQ(memory_layout(std::vector<AllocationLifetime>{}).bytes, 0);
}

TEST(MemoryLayout, OfAGraphCoversItsStoragesOnOneDevice) {
  TestGraph t;
  const auto x = t.input("x", {256});
  const auto a = t.call("aten::relu", {x}, {{256}});
  const auto b = t.call("aten::relu", {a}, {{256}});
  const auto c = t.call("aten::relu", {b}, {{256}});
  t.free_after(b.node, {t.storage(a)});
  t.output({c});
  const MemoryLayout plan = memory_layout(t.graph);
  // 1 KiB each: x is always live, a and b overlap, c reuses the space of a.
  EXPECT_EQ(plan.bound, 3 * 1024);
  EXPECT_EQ(plan.bytes, 3 * 1024);
  EXPECT_EQ(plan.offsets[t.storage(c)], plan.offsets[t.storage(a)]);
  EXPECT_EQ(plan.overhead(), 0);
}

}  // namespace
}  // namespace shadowgraph
