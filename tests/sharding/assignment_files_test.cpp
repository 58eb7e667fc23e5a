// Exported and re-imported problems keep their optimum; malformed files report the location of the error.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>

#include "shadowgraph/shard/solver.h"
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
    // Forbidden choices cost more than all allowed ones together, because a forbidden choice may remain in the file.
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
  // (0, 1) costs 1 + 3 + 0 and uses 4 + 1 bytes at point 1.
  EXPECT_EQ(solution.choice, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(static_cast<int64_t>(solution.cost), 4);
  EXPECT_EQ(static_cast<int64_t>(solution.peak), 5);
}

// A parsed free MPS file: a choice satisfies its rows exactly if it is allowed, and has the same cost.
struct Mps {
  std::map<std::string, std::map<std::string, int64_t>> columns;  // by row
  std::map<std::string, char> rows;
  std::map<std::string, int64_t> right;
  std::map<std::string, int64_t> upper;
};

Mps parsed(const AssignmentProblem& problem) {
  std::stringstream text;
  write_mps(problem, text);
  Mps mps;
  std::string section;
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    std::string third;
    std::string last;
    words >> first >> second >> third >> last;
    if (line[0] != ' ') {
      section = first;
    } else if (section == "ROWS") {
      mps.rows[second] = first[0];
    } else if (section == "COLUMNS" && second != "'MARKER'") {
      mps.columns[first][second] += std::stoll(third);
    } else if (section == "RHS") {
      mps.right[second] = std::stoll(third);
    } else if (section == "BOUNDS") {
      mps.upper[third] = std::stoll(last);
    }
  }
  return mps;
}

TEST(AssignmentFiles, MpsSaysTheSame) {
  int allowed = 0;
  int refused = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    AssignmentProblem problem = random_assignment(seed);
    // Removes parts that the format encodes as extra nodes: keeps one live interval per node and no usages on edges.
    for (AssignmentNode& node : problem.nodes) node.live.resize(std::min<size_t>(node.live.size(), 1));
    for (AssignmentEdge& edge : problem.edges) edge.live.clear();
    const Mps mps = parsed(problem);
    std::vector<uint32_t> choice(problem.nodes.size(), 0);
    for (size_t v = 0; v < choice.size(); ++v) choice[v] = static_cast<uint32_t>(seed % problem.nodes[v].costs.size());
    std::map<std::string, int64_t> value;
    for (size_t v = 0; v < choice.size(); ++v) value[fmt::format("x{}_{}", v, choice[v])] = 1;
    size_t e = 0;
    for (const AssignmentEdge& edge : problem.edges) {
      if (edge.a != edge.b) value[fmt::format("y{}_{}_{}", e++, choice[edge.a], choice[edge.b])] = 1;
    }
    std::map<std::string, int64_t> sums;
    bool holds = true;
    for (const auto& [name, unused] : value) {
      holds = holds && mps.columns.contains(name) && (!mps.upper.contains(name) || mps.upper.at(name) == 1);
      if (!mps.columns.contains(name)) continue;
      for (const auto& [row, factor] : mps.columns.at(name)) sums[row] += factor;
    }
    for (const auto& [row, kind] : mps.rows) {
      const int64_t right = mps.right.contains(row) ? mps.right.at(row) : 0;
      if (kind == 'E') holds = holds && sums[row] == right;
      if (kind == 'L') holds = holds && sums[row] <= right;
    }
    bool pinned_elsewhere = false;
    for (size_t v = 0; v < choice.size(); ++v) {
      const int32_t pinned = problem.nodes[v].pinned;
      pinned_elsewhere |= pinned >= 0 && static_cast<uint32_t>(pinned) != choice[v];
    }
    const AssignmentCost cost = evaluate(problem, choice);
    EXPECT_EQ(holds, cost.feasible() && !pinned_elsewhere) << "seed " << seed;
    if (holds) {
      EXPECT_EQ(sums["cost"], static_cast<int64_t>(cost.cost)) << "seed " << seed;
    }
    ++(holds ? allowed : refused);
  }
  EXPECT_GT(allowed, 20);
  EXPECT_GT(refused, 20);
}

TEST(AssignmentFiles, OursHaveNoUnknownKeys) {
  const AssignmentProblem problem = random_assignment(1);
  std::ostringstream out;
  write_assignment(problem, out);
  for (const char* place : {"{\"format\"", "{\"name\"", "{\"rows\"", "{\"nodes\""}) {
    std::string text = out.str();
    const size_t at = text.find(place, place == std::string("{\"format\"") ? 0 : 1);
    if (at == text.npos) continue;
    const size_t comma = text.find(',', at);
    text.insert(at == 0 ? comma : at + 1, at == 0 ? ",\"usagelimit\":5" : "\"tims\":5,");
    try {
      read_assignment(text);
      ADD_FAILURE() << text;
    } catch (const ParseError& error) {
      EXPECT_NE(std::string(error.what()).find(at == 0 ? "usagelimit: unknown key" : "tims: unknown key"),
                std::string::npos)
          << error.what();
    }
  }
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
