// Balanced cuts compared with exhaustive search.
#include "parallel/stages/balanced_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace shadowgraph {
namespace {

struct CutProblem {
  std::vector<double> costs;
  std::vector<CutPlace> places;

  double greatest(const std::vector<int32_t>& cuts) const {
    double most = 0;
    size_t begin = 0;
    for (size_t i = 0; i <= cuts.size(); ++i) {
      const size_t end = i < cuts.size() ? static_cast<size_t>(cuts[i]) : costs.size();
      most = std::max(most, std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(begin),
                                            costs.begin() + static_cast<std::ptrdiff_t>(end), 0.0));
      begin = end;
    }
    return most;
  }
  int64_t sent(const std::vector<int32_t>& cuts) const {
    int64_t bytes = 0;
    for (const CutPlace& place : places) {
      if (std::ranges::find(cuts, place.position) != cuts.end()) bytes += place.bytes;
    }
    return bytes;
  }
  template <class See>
  void for_each_choice(int32_t left, size_t from, std::vector<int32_t>& cuts, See&& see) const {
    if (left == 0) return see(cuts);
    for (size_t i = from; i < places.size(); ++i) {
      cuts.push_back(places[i].position);
      for_each_choice(left - 1, i + 1, cuts, see);
      cuts.pop_back();
    }
  }
};

TEST(BalancedCuts, AreTheBestOfAll) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    CutProblem problem;
    const int length = 4 + static_cast<int>(random() % 16);
    for (int i = 0; i < length; ++i) problem.costs.push_back(static_cast<double>(random() % 9));
    for (int32_t i = 1; i < length; ++i) {
      if (random() % 3 != 0) problem.places.push_back({i, static_cast<int64_t>(random() % 5)});
    }
    const int32_t stages = 1 + static_cast<int32_t>(random() % 4);
    if (static_cast<int32_t>(problem.places.size()) + 1 < stages) continue;
    double least = std::numeric_limits<double>::infinity();
    std::vector<int32_t> none;
    problem.for_each_choice(stages - 1, 0, none,
                            [&](const std::vector<int32_t>& cuts) { least = std::min(least, problem.greatest(cuts)); });
    int64_t fewest = std::numeric_limits<int64_t>::max();
    problem.for_each_choice(stages - 1, 0, none, [&](const std::vector<int32_t>& cuts) {
      if (problem.greatest(cuts) <= least) fewest = std::min(fewest, problem.sent(cuts));
    });
    const std::vector<int32_t> cuts = balanced_cuts(problem.costs, problem.places, stages);
    ASSERT_EQ(cuts.size(), static_cast<size_t>(stages) - 1);
    EXPECT_TRUE(std::ranges::is_sorted(cuts));
    EXPECT_EQ(problem.greatest(cuts), least);
    EXPECT_EQ(problem.sent(cuts), fewest);
    EXPECT_EQ(min_max_sum(problem.costs, problem.places, stages), least);
  }
}

TEST(BalancedCuts, AreEvenWhereThatCostsNothing) {
  // The last stage is the slowest in any case; the first three share the rest evenly.
  const std::vector<double> costs = {1, 1, 1, 1, 1, 1, 9};
  std::vector<CutPlace> places;
  for (int32_t i = 1; i < 7; ++i) places.push_back({i, 8});
  EXPECT_EQ(balanced_cuts(costs, places, 4), (std::vector<int32_t>{2, 4, 6}));
}

}  // namespace
}  // namespace shadowgraph
