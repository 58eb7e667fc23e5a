// HiGHS compared with exhaustive search on small problems and with the built-in solver; diagnosis of infeasible
// problems.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "shadowgraph/shard/solver.h"
#include "tests/sharding/random_assignment.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Skipped unless the package highspy is installed (`scripts/setup.sh --test`).
class Highs : public ::testing::Test {
 protected:
  void SetUp() override {
    AssignmentProblem one;
    one.nodes.push_back({.costs = {1}});
    try {
      solve(one, {.solver = AssignmentSolver::kHighs});
    } catch (const Error& error) {
      std::error_code none;
      for (const auto& python : std::filesystem::directory_iterator(SHADOWGRAPH_SOURCE_DIR "/.venv/lib", none)) {
        const bool installed = std::filesystem::exists(python.path() / "site-packages/highspy");
        ASSERT_FALSE(installed) << "it is installed, and not found: " << error.what();
      }
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(Highs, AgreesWithBruteForce) {
  int feasible = 0;
  int proven = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const AssignmentProblem problem = random_assignment(seed);
    const std::optional<int64_t> best = brute_force(problem);
    const AssignmentSolution solution = solve(problem, {.solver = AssignmentSolver::kHighs});
    ASSERT_EQ(solution.feasible, best.has_value());
    if (!best) {
      EXPECT_EQ(solution.stopped, "infeasible");
      continue;
    }
    ++feasible;
    proven += solution.optimal ? 1 : 0;
    EXPECT_EQ(static_cast<int64_t>(solution.cost), *best);
    EXPECT_LE(static_cast<int64_t>(solution.lower_bound), *best);
    EXPECT_EQ(evaluate(problem, solution.choice).cost, solution.cost);
  }
  EXPECT_GT(feasible, 200);
  EXPECT_EQ(proven, feasible);
}

// A chain with skip edges; all nodes are live at its end.
AssignmentProblem chain_within_limit(uint64_t seed, uint32_t length) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  AssignmentProblem problem;
  problem.usage_limit = int64_t{length} * 40 << 20;
  for (uint32_t v = 0; v < length; ++v) {
    AssignmentNode node{.name = "n" + std::to_string(v)};
    for (int64_t s = 0; s < 5; ++s) {
      node.costs.push_back((1000 * s + below(3000)) * 1'000'000 + below(1000));
      node.usages.push_back((100 << 20) / (s + 1));
    }
    node.live = {{.begin = v, .end = length}};
    problem.nodes.push_back(std::move(node));
    for (const uint32_t back : {1U, 7U}) {
      if (v < back || (back == 7 && v % 5 != 0)) continue;
      CostMatrix matrix{.rows = 5, .columns = 5};
      for (int i = 0; i < 25; ++i) matrix.costs.push_back(i % 6 == 0 ? 0 : below(2000) * 1'000'000);
      problem.edges.push_back({.a = v - back, .b = v, .matrix = static_cast<uint32_t>(problem.matrices.size())});
      problem.matrices.push_back(std::move(matrix));
    }
  }
  return problem;
}

// Costs of 10^9 and bytes of 2^30, as in sharding, exceed what doubles with solver tolerances represent exactly.
TEST_F(Highs, BoundsAndCostsHoldTheOwnSearchs) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const AssignmentProblem problem = chain_within_limit(seed, 30);
    const AssignmentSolution own = solve(problem, {.gap = 1e-3});
    const AssignmentSolution highs = solve(problem, {.solver = AssignmentSolver::kHighs});
    const AssignmentSolution both = solve(problem, {.gap = 1e-9, .solver = AssignmentSolver::kBuiltinThenHighs});
    ASSERT_TRUE(own.feasible && highs.feasible && both.feasible);
    EXPECT_LE(highs.lower_bound, own.cost);
    EXPECT_LE(own.lower_bound, highs.cost);
    EXPECT_LE(highs.cost, own.cost);
    EXPECT_LT(highs.gap(), 1e-8);
    EXPECT_LT(both.gap(), 1e-8);
    EXPECT_TRUE(evaluate(problem, highs.choice).feasible());
  }
}

TEST_F(Highs, StopsAtItsTime) {
  AssignmentProblem problem = chain_within_limit(3, 400);
  problem.usage_limit = problem.usage_limit * 9 / 10;
  const AssignmentSolution solution = solve(problem, {.time_limit = 1, .solver = AssignmentSolver::kHighs});
  EXPECT_TRUE(solution.stopped == "time" || solution.optimal || solution.stopped == "gap") << solution.stopped;
  if (solution.feasible) {
    EXPECT_LE(solution.lower_bound, solution.cost);
  }
}

AssignmentProblem two_tied(int64_t limit) {
  AssignmentProblem problem;
  problem.usage_limit = limit;
  for (const char* name : {"weights", "activations", "spare"}) {
    problem.nodes.push_back({.name = name,
                             .strategies = {"R", "S(0)"},
                             .costs = {1, 2},
                             .usages = {int64_t{4} << 30, int64_t{2} << 30},
                             .live = {{.begin = 3, .end = 5}}});
  }
  problem.matrices.push_back({.rows = 2, .columns = 2, .costs = {0, kForbidden, kForbidden, 0}});
  problem.edges.push_back({.a = 0, .b = 1, .matrix = 0});
  return problem;
}

// "weights" and "activations" share a layout; two of the three pins contradict each other.
TEST_F(Highs, NamesThePinsThatContradictEachOther) {
  AssignmentProblem problem = two_tied(kNoLimit);
  problem.nodes[0].pinned = 0;
  problem.nodes[1].pinned = 1;
  problem.nodes[2].pinned = 1;
  const AssignmentSolution solution = solve(problem, {.solver = AssignmentSolver::kHighs});
  EXPECT_EQ(solution.stopped, "infeasible");
  EXPECT_THAT(solution.why_infeasible, HasSubstr("pins weights=R and activations=S(0) together"));
  EXPECT_THAT(solution.why_infeasible, HasSubstr("without any one of them there is one"));
  EXPECT_THAT(solution.why_infeasible, HasSubstr("Conflicting nodes: weights, activations"));
  EXPECT_THAT(solution.why_infeasible, Not(HasSubstr("spare")));
}

// All replicated: 12 GiB; with the pinned tensor replicated along with its tied tensors: 4 + 4 + 2; without the pin: 6.
TEST_F(Highs, NamesThePinThatTheLimitIsTooLowForAndTheLeastLimit) {
  AssignmentProblem problem = two_tied(int64_t{9} << 30);
  const std::vector<AssignmentPin> pins{{.name = "w*=R", .node = 0, .costs = problem.nodes[0].costs},
                                        {.name = "spare=S(0)", .node = 2, .costs = problem.nodes[2].costs}};
  problem.nodes[0].costs[1] = kForbidden;
  problem.nodes[2].costs[0] = kForbidden;
  const AssignmentSolution solution = solve(problem, {.solver = AssignmentSolver::kHighs, .pins = pins});
  EXPECT_EQ(solution.stopped, "infeasible");
  EXPECT_THAT(solution.why_infeasible, HasSubstr("No plan fits into 9.00 GiB with pin w*=R; without it"));
  EXPECT_THAT(solution.why_infeasible, HasSubstr("The smallest feasible limit is 10.00 GiB, at point 3"));
  EXPECT_THAT(solution.why_infeasible, HasSubstr("weights (4.00 GiB), activations (4.00 GiB), spare (2.00 GiB)"));
  EXPECT_THAT(solution.why_infeasible, HasSubstr("without pins it is 6.00 GiB"));
  problem.usage_limit = int64_t{10} << 30;
  EXPECT_TRUE(solve(problem, {.solver = AssignmentSolver::kHighs, .pins = pins}).feasible);
}

// The reported minimum limit is feasible, and one byte less is infeasible.
TEST_F(Highs, LeastLimitsAreTheLeast) {
  int checked = 0;
  for (uint64_t seed = 0; seed < 400 && checked < 30; ++seed) {
    AssignmentProblem problem = random_assignment(seed);
    if (problem.usage_limit == kNoLimit || brute_force(problem)) continue;
    problem.usage_limit = kNoLimit;
    const std::optional<int64_t> allowed = brute_force(problem);
    problem.usage_limit = 0;
    const AssignmentSolution none = solve(problem, {.solver = AssignmentSolver::kHighs});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + none.why_infeasible);
    if (none.feasible) continue;
    const std::string words = "The smallest feasible limit is ";
    const size_t at = none.why_infeasible.find(words);
    ASSERT_EQ(at != std::string::npos, allowed.has_value());
    if (!allowed) continue;
    const int64_t least = std::atoll(none.why_infeasible.c_str() + at + words.size());
    ++checked;
    problem.usage_limit = least;
    EXPECT_TRUE(brute_force(problem).has_value());
    problem.usage_limit = least - 1;
    EXPECT_FALSE(brute_force(problem).has_value());
  }
  EXPECT_EQ(checked, 30);
}

TEST(HighsLibraryTest, IsMissedByNameWhereItIsNot) {
  AssignmentProblem problem;
  problem.nodes.push_back({.costs = {1, 2}});
  problem.nodes.push_back({.costs = {3, 1}});
  try {
    solve(problem, {.solver = AssignmentSolver::kHighs, .highs = "/nowhere/libhighs.so"});
    FAIL() << "solved without a library";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/libhighs.so"));
    EXPECT_THAT(error.what(), HasSubstr("pip install highspy"));
  }
  EXPECT_TRUE(solve(problem, {.highs = "/nowhere/libhighs.so"}).optimal) << "the own search needs none";
}

}  // namespace
}  // namespace shadowgraph
