// Redistribution between layouts: the chosen steps, and properties of their costs.
#include <gtest/gtest.h>

#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/solver.h"

namespace shadowgraph {
namespace {

using Dims = std::vector<int64_t>;

class Redistribution2d : public ::testing::Test {
 protected:
  Redistribution path(const Dims& sizes, const char* from, const char* to) const {
    return planner_.path(sizes, 4, Layout::parse(from), Layout::parse(to));
  }
  std::string steps(const Dims& sizes, const char* from, const char* to) const {
    const Redistribution found = path(sizes, from, to);
    if (!found.possible) return "none";
    std::string text;
    for (const RedistributionStep& step : found.steps) {
      text += (text.empty() ? "" : "; ") + std::string(to_string(step.kind)) + " " + mesh_.axes[step.axis].name + " " +
              to_string(step.from) + "->" + to_string(step.to);
    }
    return text;
  }
  DeviceMesh mesh_ = DeviceMesh::parse("dp=4,tp=8");
  Interconnect links_ = Interconnect::named("h100");
  RedistributionPlanner planner_{mesh_, {.interconnect = &links_, .memory_bandwidth = 3e12}};
};

TEST_F(Redistribution2d, OneStepEach) {
  const Dims sizes{64, 64};
  EXPECT_EQ(steps(sizes, "R,R", "R,R"), "");
  EXPECT_EQ(steps(sizes, "R,R", "R,S(1)"), "slice tp R->S(1)");
  EXPECT_EQ(steps(sizes, "R,S(0)", "R,R"), "all_gather tp S(0)->R");
  EXPECT_EQ(steps(sizes, "R,P(sum)", "R,R"), "all_reduce tp P(sum)->R");
  EXPECT_EQ(steps(sizes, "P(sum),R", "S(0),R"), "reduce_scatter dp P(sum)->S(0)");
  EXPECT_EQ(steps(sizes, "R,S(0)", "R,S(1)"), "all_to_all tp S(0)->S(1)");
  EXPECT_EQ(steps(sizes, "R,R", "R,P(sum)"), "none");
  EXPECT_EQ(steps(sizes, "R,S(0)", "P(sum),S(0)"), "none");
}

// A local copy reads and writes 64 MiB / 8 = 2^23 bytes at 3 TB/s, after a launch of 5 us.
TEST_F(Redistribution2d, ASliceTakesItsLaunchAndTwiceItsBytes) {
  const Redistribution slice = path({4096, 4096}, "R,R", "R,S(0)");
  ASSERT_EQ(slice.steps.size(), 1U);
  EXPECT_NEAR(static_cast<double>(slice.picoseconds), 5e6 + 2.0 * (1 << 23) / 3e12 * 1e12, 1);
  EXPECT_EQ(slice.wire_bytes, 0);
}

// A large sum over both axes: the second all_reduce works on a quarter of the data.
TEST_F(Redistribution2d, SumsOverTwoAxesGoThroughPieces) {
  EXPECT_EQ(steps({8192, 8192}, "P(sum),P(sum)", "R,R"),
            "reduce_scatter tp P(sum)->S(0); all_reduce dp P(sum)->R; all_gather tp S(0)->R");
}

// dp spans machines, tp does not: each rank sends a shard through the slow link, then gathers within the machine.
TEST_F(Redistribution2d, NarrowLinksCarryPieces) {
  EXPECT_EQ(steps({4096, 4096}, "P(sum),R", "S(0),R"),
            "slice tp R->S(1); reduce_scatter dp P(sum)->S(0); all_gather tp S(1)->R");
}

// dp shards are outside tp shards: dp cannot be sharded after tp, nor gathered first without strided shards.
TEST_F(Redistribution2d, NestedCuts) {
  const Dims sizes{64, 64};
  const auto around = redistribution_step(Layout::parse("R,S(0)"), 0, Placement::shard(0), mesh_, sizes);
  EXPECT_FALSE(around.has_value());
  const auto gathered = redistribution_step(Layout::parse("S(0),S(0)"), 0, Placement::replicate(), mesh_, sizes);
  ASSERT_TRUE(gathered.has_value());
  EXPECT_EQ(to_string(gathered->after), "R,S(0,4)");
  const Redistribution found = path(sizes, "R,S(0)", "S(0),S(0)");
  ASSERT_TRUE(found.possible);
  EXPECT_EQ(found.steps.back().after, Layout::parse("S(0),S(0)"));
}

TEST_F(Redistribution2d, BlocksOfPieces) {
  EXPECT_EQ(piece_block_count(Layout::parse("S(0),R"), 0, Dims{16, 8}, mesh_), 1);
  EXPECT_EQ(piece_block_count(Layout::parse("R,S(1)"), 1, Dims{16, 8}, mesh_), 16);
  EXPECT_EQ(piece_block_count(Layout::parse("S(0),S(1)"), 1, Dims{16, 8}, mesh_), 4);
  EXPECT_EQ(piece_block_count(Layout::parse("R,S(0,2)"), 1, Dims{16, 8}, mesh_), 2);
  EXPECT_EQ(piece_block_count(Layout::parse("S(0),S(0)"), 1, Dims{32, 8}, mesh_), 1);
  EXPECT_EQ(piece_block_count(Layout::parse("S(0),S(0,4)"), 1, Dims{32, 8}, mesh_), 1);
}

// Returns all layouts of a matrix on two mesh axes.
std::vector<Layout> layouts_of_a_matrix() {
  const Placement placements[] = {Placement::replicate(), Placement::shard(0), Placement::shard(1),
                                  Placement::partial(), Placement::shard(0, 64)};
  std::vector<Layout> layouts;
  for (const Placement& a : placements) {
    for (const Placement& b : placements) layouts.push_back({a, b});
  }
  return layouts;
}

TEST_F(Redistribution2d, ManyAtOnceAreAsOneByOne) {
  const Dims sizes{2048, 512};
  const std::vector<Layout> layouts = layouts_of_a_matrix();
  const std::vector<int64_t> costs = planner_.costs(sizes, 2, layouts, layouts);
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t j = 0; j < layouts.size(); ++j) {
      const Redistribution one = planner_.path(sizes, 2, layouts[i], layouts[j]);
      EXPECT_EQ(costs[i * layouts.size() + j], one.possible ? one.picoseconds : kForbidden)
          << to_string(layouts[i]) << " to " << to_string(layouts[j]);
      if (!one.possible) continue;
      Layout layout = layouts[i];
      for (const RedistributionStep& step : one.steps) {
        const auto again = redistribution_step(layout, step.axis, step.to, mesh_, sizes);
        ASSERT_TRUE(again.has_value());
        layout = again->after;
      }
      EXPECT_EQ(layout, layouts[j]);
    }
  }
}

// No path is more expensive than one through an intermediate layout, and no redistribution is free except the identity.
TEST_F(Redistribution2d, TriangleInequality) {
  const Dims sizes{1024, 4096};
  std::vector<Layout> layouts = layouts_of_a_matrix();
  std::erase_if(layouts, [](const Layout& layout) { return to_string(layout).find(",64)") != std::string::npos; });
  const size_t n = layouts.size();
  const std::vector<int64_t> costs = planner_.costs(sizes, 4, layouts, layouts);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(costs[i * n + i], 0);
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < n; ++k) {
        if (costs[i * n + j] == kForbidden || costs[j * n + k] == kForbidden) continue;
        EXPECT_LE(costs[i * n + k], costs[i * n + j] + costs[j * n + k])
            << to_string(layouts[i]) << " over " << to_string(layouts[j]) << " to " << to_string(layouts[k]);
      }
    }
  }
}

TEST_F(Redistribution2d, MoreBytesCostMore) {
  for (const Layout& from : layouts_of_a_matrix()) {
    for (const Layout& to : layouts_of_a_matrix()) {
      int64_t last = -1;
      for (int64_t rows = 256; rows <= 65536; rows *= 4) {
        const Redistribution found = planner_.path(Dims{rows, 512}, 4, from, to);
        if (!found.possible) continue;
        EXPECT_GE(found.picoseconds, last) << to_string(from) << " to " << to_string(to);
        last = found.picoseconds;
      }
    }
  }
}

// reduce_scatter costs at most all_reduce; all_reduce costs at most reduce_scatter plus all_gather.
TEST_F(Redistribution2d, SumsAndTheirPieces) {
  for (int64_t rows = 64; rows <= 65536; rows *= 8) {
    const Dims sizes{rows, 1024};
    EXPECT_LE(path(sizes, "R,P(sum)", "R,S(0)").picoseconds, path(sizes, "R,P(sum)", "R,R").picoseconds);
    EXPECT_LE(path(sizes, "R,P(sum)", "R,R").picoseconds,
              path(sizes, "R,P(sum)", "R,S(0)").picoseconds + path(sizes, "R,S(0)", "R,R").picoseconds);
  }
}

TEST(RedistributionPlanner, NeedsLinks) { EXPECT_THROW(RedistributionPlanner(DeviceMesh::parse("2"), {}), Error); }

}  // namespace
}  // namespace shadowgraph
