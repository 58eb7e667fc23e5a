// Problems that are written and read again have the same optimum, and files that are none say where.
#include "shadowgraph/sharding/assignment_files.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/sharding/random_assignment.h"

namespace shadowgraph {
namespace {

TEST(AssignmentFiles, OursComeBackByteForByte) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const AssignmentProblem problem = random_assignment(seed);
    std::ostringstream first;
    write_assignment(problem, first);
    const AssignmentProblem read = read_assignment(first.str());
    std::ostringstream second;
    write_assignment(read, second);
    EXPECT_EQ(first.str(), second.str()) << "seed " << seed;
    EXPECT_EQ(brute_force(problem), brute_force(read)) << "seed " << seed;
  }
}

TEST(AssignmentFiles, IopddlHasTheSameOptimum) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const AssignmentProblem problem = random_assignment(seed);
    std::ostringstream out;
    write_iopddl(problem, out);
    const AssignmentSolution solution = solve(read_assignment(out.str()));
    const std::optional<int64_t> best = brute_force(problem);
    // What is forbidden costs more than all else together there: a choice that is none may remain.
    if (best) {
      EXPECT_LE(static_cast<int64_t>(solution.lower_bound), *best) << "seed " << seed;
      if (solution.optimal) {
        EXPECT_EQ(static_cast<int64_t>(solution.cost), *best) << "seed " << seed;
      }
    }
  }
}

TEST(AssignmentFiles, ReadsTheContestsFormat) {
  const AssignmentProblem problem = read_assignment(R"({"problem": {"name": "small", "unknown": [{"x": 1.5}],
    "edges": {"nodes": [[0, 1]], "costs": [[5, 0, 0, 5]]},
    "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 3]], "usages": [[4, 0], [4, 1]]},
    "usage_limit": 5}})");
  const AssignmentSolution solution = solve(problem);
  // (0, 1): 1 + 3 + 0, with 4 + 1 bytes at point 1.
  EXPECT_EQ(solution.choice, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(static_cast<int64_t>(solution.cost), 4);
  EXPECT_EQ(static_cast<int64_t>(solution.peak), 5);
}

TEST(AssignmentFiles, HostileOnesAreRefused) {
  for (const char* bad : {
           "",
           "[]",
           "{",
           "{}",
           R"({"problem": 1})",
           R"({"format": "else"})",
           R"({"problem": {"nodes": {"intervals": [[0,1]], "costs": [[1]], "usages": []}}})",
           R"({"problem": {"nodes": {"intervals": [[0,1]], "costs": [[-1]], "usages": [[1]]}}})",
           R"({"problem": {"nodes": {"intervals": [[0,1]], "costs": [[99999999999999999999]], "usages": [[1]]}}})",
           R"({"problem": {"nodes": {"intervals": [[0,1]], "costs": [[1.5]], "usages": [[1]]}}})",
           R"({"problem": {"nodes": {"intervals": [[0,1]], "costs": [[]], "usages": [[]]}}})",
           R"({"problem": {"nodes": {"intervals": [], "costs": [], "usages": []},
                           "edges": {"nodes": [[0, 7]], "costs": [[1]]}}})",
           R"({"problem": {"nodes": {"intervals": [], "costs": [], "usages": []}}} more)",
           R"({"format": "shadowgraph-assignment", "version": 2})",
           R"({"format": "shadowgraph-assignment", "version": 1, "edges": [{"nodes": [0]}]})",
           R"({"problem": {"name": "no end)",
       }) {
    EXPECT_THROW(read_assignment(bad), ParseError) << bad;
  }
  EXPECT_THROW(read_assignment("{\"x\": " + std::string(100000, '[')), ParseError);
}

}  // namespace
}  // namespace shadowgraph
