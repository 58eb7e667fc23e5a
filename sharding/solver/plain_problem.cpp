#include "sharding/solver/plain_problem.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "sharding/solver/node_usages.h"

namespace shadowgraph {

namespace {

int64_t multiplied(int64_t figure, int64_t times) {
  int64_t product = 0;
  if (__builtin_mul_overflow(figure, times, &product)) throw Error("a cost times its count has more than 64 bits");
  return product;
}

bool may_be(const AssignmentNode& node, uint32_t s) {
  return node.costs[s] != kForbidden && (node.pinned < 0 || static_cast<uint32_t>(node.pinned) == s);
}

}  // namespace

AssignmentProblem plain(const AssignmentProblem& given) {
  AssignmentProblem problem = has_edge_usages(given) ? with_node_usages(given).problem : given;
  const size_t count = problem.nodes.size();
  for (size_t i = 0; i < count; ++i) {
    for (uint32_t s = 0; s < problem.nodes[i].costs.size(); ++s) {
      int64_t& cost = problem.nodes[i].costs[s];
      cost = may_be(problem.nodes[i], s) ? multiplied(cost, problem.nodes[i].times) : kForbidden;
    }
    problem.nodes[i].times = 1;
    problem.nodes[i].pinned = -1;
    if (problem.nodes[i].usages.empty()) {
      problem.nodes[i].usages.assign(problem.nodes[i].costs.size(), 0);
      problem.nodes[i].live.clear();
    }
    const AssignmentNode node = problem.nodes[i];
    for (size_t k = 0; k < node.live.size(); ++k) {
      AssignmentNode part{.name = node.name, .costs = std::vector<int64_t>(node.costs.size(), 0)};
      for (const int64_t usage : node.usages) part.usages.push_back(multiplied(usage, node.live[k].count));
      part.live = {{.begin = node.live[k].begin, .end = node.live[k].end}};
      if (k == 0) {
        problem.nodes[i].usages = std::move(part.usages);
        problem.nodes[i].live = std::move(part.live);
        continue;
      }
      const auto size = static_cast<uint32_t>(node.costs.size());
      CostMatrix tie{.rows = size, .columns = size};
      tie.costs.assign(size_t{size} * size, kForbidden);
      for (uint32_t s = 0; s < size; ++s) tie.costs[size_t{s} * size + s] = 0;
      problem.edges.push_back({.a = static_cast<uint32_t>(i),
                               .b = static_cast<uint32_t>(problem.nodes.size()),
                               .matrix = static_cast<uint32_t>(problem.matrices.size())});
      problem.matrices.push_back(std::move(tie));
      problem.nodes.push_back(std::move(part));
    }
  }
  std::vector<AssignmentEdge> edges;
  std::vector<CostMatrix> matrices;
  for (const AssignmentEdge& edge : problem.edges) {
    CostMatrix matrix = problem.matrices[edge.matrix];
    for (int64_t& cost : matrix.costs) cost = cost == kForbidden ? kForbidden : multiplied(cost, edge.times);
    if (edge.a == edge.b) {
      for (uint32_t s = 0; s < matrix.rows; ++s) {
        int64_t& cost = problem.nodes[edge.a].costs[s];
        const int64_t more = matrix.at(s, s);
        if (cost == kForbidden || more == kForbidden) {
          cost = kForbidden;
        } else if (__builtin_add_overflow(cost, more, &cost)) {
          throw Error("a sum of costs has more than 64 bits");
        }
      }
      continue;
    }
    edges.push_back({.a = edge.a, .b = edge.b, .matrix = static_cast<uint32_t>(matrices.size())});
    matrices.push_back(std::move(matrix));
  }
  problem.edges = std::move(edges);
  problem.matrices = std::move(matrices);
  return problem;
}

int64_t forbidding_cost(const AssignmentProblem& problem) {
  AssignmentCost::Wide sum = 1;
  const auto add = [&](std::span<const int64_t> costs) {
    int64_t most = 0;
    for (const int64_t cost : costs) most = cost == kForbidden ? most : std::max(most, cost);
    sum += most;
  };
  for (const AssignmentNode& node : problem.nodes) add(node.costs);
  for (const CostMatrix& matrix : problem.matrices) add(matrix.costs);
  if (sum > std::numeric_limits<int64_t>::max() / 4) throw Error("costs are too large to forbid anything by a cost");
  return static_cast<int64_t>(sum);
}

}  // namespace shadowgraph
