// The solver compared with exhaustive search on small problems; results are deterministic.
#include "shadowgraph/shard/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "sharding/solver/assignment.h"
#include "sharding/solver/local_search.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"
#include "tests/sharding/random_assignment.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

TEST(Solver, AgreesWithBruteForce) {
  int feasible = 0;
  int optimal = 0;
  int proven = 0;
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
    proven += solution.optimal ? 1 : 0;
    EXPECT_EQ(solution.optimal, solution.stopped == "optimal");
    optimal += static_cast<int64_t>(solution.cost) == *best ? 1 : 0;
  }
  EXPECT_GT(feasible, 1000);
  EXPECT_GE(proven * 100, feasible * 97);
  EXPECT_GE(optimal * 100, feasible * 99);
}

// Bounds stay valid for amounts that doubles cannot represent exactly.
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

// A chain with skip edges whose nodes are all live at its end; too large for exhaustive search.
AssignmentProblem chain_within_limit(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  AssignmentProblem problem;
  problem.usage_limit = 60 * 40;
  for (uint32_t v = 0; v < 60; ++v) {
    AssignmentNode node;
    for (int64_t s = 0; s < 5; ++s) {
      node.costs.push_back(1000 * s + below(3000));
      node.usages.push_back(100 / (s + 1));
    }
    node.live = {{.begin = v, .end = 60}};
    problem.nodes.push_back(std::move(node));
    for (const uint32_t back : {1U, 7U}) {
      if (v < back || (back == 7 && v % 5 != 0)) continue;
      CostMatrix matrix{.rows = 5, .columns = 5};
      for (int i = 0; i < 25; ++i) matrix.costs.push_back(i % 6 == 0 ? 0 : below(2000));
      if (back == 7) {
        for (int i = 0; i < 25; ++i) matrix.usages.push_back(below(20));
      }
      AssignmentEdge edge{.a = v - back, .b = v, .matrix = static_cast<uint32_t>(problem.matrices.size())};
      if (back == 7) edge.live = {{.begin = v - 7, .end = v}};
      problem.matrices.push_back(std::move(matrix));
      problem.edges.push_back(std::move(edge));
    }
  }
  return problem;
}

TEST(Solver, ProvesLittleGapsWithinLimits) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const AssignmentProblem problem = chain_within_limit(seed);
    const AssignmentSolution solution = solve(problem, {.gap = 0.01});
    ASSERT_TRUE(solution.feasible) << "seed " << seed << ": " << solution.why_infeasible;
    EXPECT_LE(static_cast<int64_t>(evaluate(problem, solution.choice).peak), problem.usage_limit);
    EXPECT_LE(solution.gap(), 0.01) << "seed " << seed;
    EXPECT_TRUE(solution.stopped == "gap" || solution.stopped == "optimal") << solution.stopped;
    AssignmentProblem free = problem;
    free.usage_limit = kNoLimit;
    EXPECT_GT(solution.cost, solve(free).cost) << "seed " << seed << ": the limit must bind";
  }
}

TEST(Solver, ThreadsChangeNothing) {
  const AssignmentProblem problem = chain_within_limit(7);
  const AssignmentSolution one = solve(problem, {.iterations = 20, .moves = 4000, .threads = 1});
  for (const size_t threads : {0, 2, 8}) {
    const AssignmentSolution several = solve(problem, {.iterations = 20, .moves = 4000, .threads = threads});
    EXPECT_EQ(one.choice, several.choice);
    EXPECT_EQ(one.lower_bound, several.lower_bound);
  }
}

// Large costs with which other formats encode "forbidden" are treated as such, unless there is no alternative.
TEST(Solver, CostsAboveAllOthersAreForbiddenFirst) {
  constexpr int64_t kHuge = 1'000'000'000'000'000'000;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    AssignmentProblem strict = random_assignment(seed);
    AssignmentProblem priced = strict;
    for (AssignmentNode& node : priced.nodes) {
      for (int64_t& cost : node.costs) cost = cost == kForbidden ? kHuge : cost;
    }
    for (CostMatrix& matrix : priced.matrices) {
      for (int64_t& cost : matrix.costs) cost = cost == kForbidden ? kHuge : cost;
    }
    const AssignmentSolution allowed = solve(strict);
    const AssignmentSolution solution = solve(priced);
    if (allowed.feasible) {
      EXPECT_EQ(solution.cost, allowed.cost) << "seed " << seed;
      EXPECT_EQ(solution.lower_bound, allowed.lower_bound) << "seed " << seed;
    } else if (solution.feasible) {
      EXPECT_GE(solution.cost, kHuge) << "seed " << seed;
    }
  }
}

TEST(Solver, SaysWhyNothingFits) {
  AssignmentProblem problem;
  problem.usage_limit = int64_t{3} << 30;
  for (const char* name : {"weights", "activations"}) {
    problem.nodes.push_back({.name = name,
                             .costs = {1, 2},
                             .usages = {int64_t{4} << 30, int64_t{2} << 30},
                             .live = {{.begin = 0, .end = 2}}});
  }
  const AssignmentSolution solution = solve(problem);
  EXPECT_FALSE(solution.feasible);
  EXPECT_EQ(solution.stopped, "infeasible");
  EXPECT_THAT(solution.why_infeasible, ::testing::HasSubstr("sum to 4.00 GiB, above the limit of 3.00 GiB"));
  EXPECT_THAT(solution.why_infeasible, ::testing::HasSubstr("weights (2.00 GiB)"));
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

// Incrementally updated costs and excess memory of the local search equal freshly computed sums.
TEST(Solver, LocalSearchKnowsCostAndExcessAfterEveryMove) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    AssignmentProblem problem = chain_within_limit(seed);
    problem.usage_limit /= 2;
    const PairwiseModel pairwise = pairwise_model(problem);
    const CompactModel model(pairwise, UsageModel(problem, pairwise));
    LocalSearch search(model, seed);
    search.load(std::vector<uint32_t>(model.size(), 0));
    LocalSearch anew(model, seed);
    for (int move = 0; move < 500; ++move) {
      search.step();
      anew.load(search.states());
      ASSERT_NEAR(search.cost(), anew.cost(), 1e-6) << "seed " << seed << ", move " << move;
      ASSERT_NEAR(search.excess(), anew.excess(), 1e-6) << "seed " << seed << ", move " << move;
    }
  }
}

// Two nodes that are never live together: at the reported point, the first is already freed.
TEST(Solver, NeedsNameWhatIsAliveThen) {
  AssignmentProblem problem;
  problem.usage_limit = 1000;
  for (int64_t i = 0; i < 3; ++i) {
    problem.nodes.push_back({.name = std::string(1, static_cast<char>('a' + i)),
                             .costs = {1},
                             .usages = {1024 * (i + 1)},
                             .live = {{.begin = i, .end = i + 1}}});
  }
  const MinimumUsages needs(problem);
  EXPECT_TRUE(needs.exceed_limit());
  const std::string text = needs.to_text(/*shown=*/true);
  EXPECT_THAT(text, HasSubstr("At point 2 "));
  EXPECT_THAT(text, HasSubstr("the largest: c (3.00 KiB)"));
  EXPECT_EQ(text.find("a ("), std::string::npos) << text;
  EXPECT_EQ(most_used_at(problem, std::vector<uint32_t>{0, 0, 0}, 1), "b (2.00 KiB)");
}

}  // namespace
}  // namespace shadowgraph
