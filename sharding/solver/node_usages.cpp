#include "sharding/solver/node_usages.h"

#include <fmt/format.h>

#include <algorithm>

namespace shadowgraph {

namespace {

bool uses_bytes(const AssignmentProblem& problem, const AssignmentEdge& edge) {
  const std::vector<int64_t>& usages = problem.matrices[edge.matrix].usages;
  return !edge.live.empty() && std::any_of(usages.begin(), usages.end(), [](int64_t x) { return x > 0; });
}

// Returns the edge's pairs, by strategy of the node that the edge becomes.
std::vector<std::pair<uint32_t, uint32_t>> pairs_of(const AssignmentProblem& problem, const AssignmentEdge& edge) {
  const CostMatrix& matrix = problem.matrices[edge.matrix];
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t i = 0; i < matrix.rows; ++i) {
    for (uint32_t j = 0; j < matrix.columns; ++j) {
      if (matrix.at(i, j) != kForbidden && (edge.a != edge.b || i == j)) pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

}  // namespace

bool has_edge_usages(const AssignmentProblem& problem) {
  return std::any_of(problem.edges.begin(), problem.edges.end(),
                     [&](const AssignmentEdge& edge) { return uses_bytes(problem, edge); });
}

NodeUsages with_node_usages(const AssignmentProblem& problem) {
  NodeUsages made;
  AssignmentProblem& result = made.problem;
  result.name = problem.name;
  result.nodes = problem.nodes;
  result.matrices = problem.matrices;
  result.usage_limit = problem.usage_limit;
  for (uint32_t e = 0; e < problem.edges.size(); ++e) {
    const AssignmentEdge& edge = problem.edges[e];
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    const auto pairs = uses_bytes(problem, edge) ? pairs_of(problem, edge) : decltype(pairs_of(problem, edge)){};
    if (pairs.empty()) {
      AssignmentEdge same = edge;
      same.live.clear();
      result.edges.push_back(std::move(same));
      continue;
    }
    AssignmentNode node{.name = fmt::format("{} -> {}", problem.nodes[edge.a].name, problem.nodes[edge.b].name)};
    CostMatrix to_a{.rows = static_cast<uint32_t>(pairs.size()), .columns = matrix.rows};
    CostMatrix to_b{.rows = static_cast<uint32_t>(pairs.size()), .columns = matrix.columns};
    to_a.costs.assign(size_t{to_a.rows} * to_a.columns, kForbidden);
    to_b.costs.assign(size_t{to_b.rows} * to_b.columns, kForbidden);
    for (size_t p = 0; p < pairs.size(); ++p) {
      const auto [i, j] = pairs[p];
      node.costs.push_back(matrix.at(i, j));
      node.usages.push_back(matrix.usages[size_t{i} * matrix.columns + j]);
      to_a.costs[p * to_a.columns + i] = 0;
      to_b.costs[p * to_b.columns + j] = 0;
    }
    node.live = edge.live;
    node.times = edge.times;
    const auto added = static_cast<uint32_t>(result.nodes.size());
    result.nodes.push_back(std::move(node));
    made.edge.push_back(e);
    const auto tie = [&](uint32_t end, CostMatrix ties) {
      result.edges.push_back({.a = added, .b = end, .matrix = static_cast<uint32_t>(result.matrices.size())});
      result.matrices.push_back(std::move(ties));
    };
    tie(edge.a, std::move(to_a));
    if (edge.a != edge.b) tie(edge.b, std::move(to_b));
  }
  for (CostMatrix& matrix : result.matrices) matrix.usages.clear();
  return made;
}

std::vector<uint32_t> extended(const NodeUsages& usages, const AssignmentProblem& problem,
                               std::span<const uint32_t> choice) {
  std::vector<uint32_t> result(choice.begin(), choice.end());
  for (const uint32_t e : usages.edge) {
    const AssignmentEdge& edge = problem.edges[e];
    const auto pairs = pairs_of(problem, edge);
    const auto found = std::find(pairs.begin(), pairs.end(), std::pair(choice[edge.a], choice[edge.b]));
    if (found == pairs.end()) return {};
    result.push_back(static_cast<uint32_t>(found - pairs.begin()));
  }
  return result;
}

}  // namespace shadowgraph
