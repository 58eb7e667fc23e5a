// The solver against every choice of small problems; what it finds is the same again.
#include "shadowgraph/sharding/solver.h"

#include <gtest/gtest.h>

#include "tests/sharding/random_assignment.h"

namespace shadowgraph {
namespace {

TEST(Solver, AgreesWithBruteForce) {
  int feasible = 0;
  int optimal = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const AssignmentProblem problem = random_assignment(seed);
    const AssignmentSolution solution = solve(problem);
    const std::optional<int64_t> best = brute_force(problem);
    SCOPED_TRACE("seed " + std::to_string(seed));
    if (!best) {
      EXPECT_FALSE(solution.feasible);
      EXPECT_FALSE(solution.why_infeasible.empty());
      continue;
    }
    ++feasible;
    EXPECT_LE(static_cast<int64_t>(solution.lower_bound), *best);
    if (problem.usage_limit == kNoLimit) {
      EXPECT_TRUE(solution.optimal);
    }
    if (!solution.feasible) continue;
    const AssignmentCost cost = evaluate(problem, solution.choice);
    EXPECT_TRUE(cost.feasible());
    EXPECT_EQ(cost.cost, solution.cost);
    EXPECT_GE(static_cast<int64_t>(solution.cost), *best);
    if (solution.optimal) {
      EXPECT_EQ(static_cast<int64_t>(solution.cost), *best);
    }
    optimal += static_cast<int64_t>(solution.cost) == *best ? 1 : 0;
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_GE(optimal * 100, feasible * 99);
}

// Amounts that doubles cannot hold exactly must not make bounds that are none.
TEST(Solver, BoundsHoldForHugeCosts) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    AssignmentProblem problem = random_assignment(seed);
    const int64_t scale = int64_t{1} << (20 + seed % 30);
    for (AssignmentNode& node : problem.nodes) {
      for (int64_t& cost : node.costs) cost = cost == kForbidden ? cost : cost * scale + static_cast<int64_t>(seed % 7);
    }
    const AssignmentSolution solution = solve(problem);
    const std::optional<int64_t> best = brute_force(problem);
    SCOPED_TRACE("seed " + std::to_string(seed));
    if (!best) {
      EXPECT_FALSE(solution.feasible);
      continue;
    }
    EXPECT_LE(static_cast<int64_t>(solution.lower_bound), *best);
    if (solution.optimal) {
      EXPECT_EQ(static_cast<int64_t>(solution.cost), *best);
    }
  }
}

TEST(Solver, FindsTheSameAgain) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const AssignmentProblem problem = random_assignment(seed);
    const AssignmentSolution first = solve(problem);
    const AssignmentSolution second = solve(problem);
    EXPECT_EQ(first.choice, second.choice) << "seed " << seed;
    EXPECT_EQ(first.lower_bound, second.lower_bound) << "seed " << seed;
  }
}

TEST(Solver, IsNeverWorseThanItsStart) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const AssignmentProblem problem = random_assignment(seed);
    const std::vector<uint32_t> start(problem.nodes.size(), 0);
    const AssignmentCost cost = evaluate(problem, start);
    const AssignmentSolution solution = solve(problem, {.start = start});
    if (cost.feasible()) {
      EXPECT_LE(solution.cost, cost.cost) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace shadowgraph
