// Small random assignment problems that use every feature, and their optimum by exhaustive search.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

inline AssignmentProblem random_assignment(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  AssignmentProblem problem;
  problem.name = "seed " + std::to_string(seed);
  const auto nodes = static_cast<uint32_t>(1 + below(6));
  for (uint32_t i = 0; i < nodes; ++i) {
    AssignmentNode node{.name = "n" + std::to_string(i)};
    const auto strategies = static_cast<size_t>(1 + below(4));
    for (size_t s = 0; s < strategies; ++s) node.costs.push_back(below(8) == 0 ? kForbidden : below(50));
    if (below(4) != 0) {
      for (size_t s = 0; s < strategies; ++s) node.usages.push_back(below(20));
      const int64_t begin = below(5);
      node.live.push_back({.begin = begin, .end = begin + 1 + below(4), .count = 1 + below(2)});
      if (below(3) == 0) node.live.push_back({.begin = begin + 5, .end = begin + 7, .count = 1});
    }
    if (below(3) == 0) node.times = 1 + below(5);
    if (below(8) == 0) node.pinned = static_cast<int32_t>(below(strategies));
    problem.nodes.push_back(std::move(node));
  }
  const int64_t edges = below(2 * nodes + 1);
  for (int64_t e = 0; e < edges; ++e) {
    AssignmentEdge edge{.a = static_cast<uint32_t>(below(nodes)), .b = static_cast<uint32_t>(below(nodes))};
    CostMatrix matrix{.rows = static_cast<uint32_t>(problem.nodes[edge.a].costs.size()),
                      .columns = static_cast<uint32_t>(problem.nodes[edge.b].costs.size())};
    const bool tie = below(4) == 0;
    for (uint32_t i = 0; i < matrix.rows; ++i) {
      for (uint32_t j = 0; j < matrix.columns; ++j) {
        const bool forbidden = tie ? i % matrix.columns != j : below(10) == 0;
        matrix.costs.push_back(forbidden ? kForbidden : below(40));
      }
    }
    if (below(5) == 0) {
      for (size_t i = 0; i < matrix.costs.size(); ++i) matrix.usages.push_back(below(15));
      const int64_t begin = below(6);
      edge.live.push_back({.begin = begin, .end = begin + 2, .count = 1});
    }
    if (below(3) == 0) edge.times = 1 + below(3);
    edge.matrix = static_cast<uint32_t>(problem.matrices.size());
    problem.matrices.push_back(std::move(matrix));
    problem.edges.push_back(std::move(edge));
  }
  if (below(3) != 0) problem.usage_limit = below(20 * nodes + 1);
  return problem;
}

inline std::optional<int64_t> brute_force(const AssignmentProblem& problem) {
  std::optional<int64_t> best;
  std::vector<uint32_t> choice(problem.nodes.size(), 0);
  for (size_t i = 0; i < choice.size();) {
    const AssignmentCost cost = evaluate(problem, choice);
    if (cost.feasible()) best = std::min(best.value_or(kForbidden), static_cast<int64_t>(cost.cost));
    for (i = 0; i < choice.size() && ++choice[i] == problem.nodes[i].costs.size(); ++i) choice[i] = 0;
    if (i < choice.size()) i = 0;
  }
  return best;
}

}  // namespace shadowgraph
