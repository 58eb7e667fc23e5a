#include "sharding/solver/problem_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;

constexpr double kMostCost = 0x1p45;

// Returns the least cost, multiplied out, above which a single cost is more than the dearest choice without such costs;
// kForbidden if there is none.
int64_t cost_above_all(const AssignmentProblem& problem) {
  // Costs are grouped by their bits: the largest of each node and edge with that many, summed, and the least one with
  // more.
  constexpr size_t kBits = 64;
  std::array<Wide, kBits> dearest{};
  std::array<int64_t, kBits> least;
  least.fill(kForbidden);
  std::array<int64_t, kBits> here{};
  const auto look = [&](std::span<const int64_t> costs, int64_t times) {
    here.fill(0);
    for (const int64_t cost : costs) {
      if (cost == kForbidden) continue;
      const Wide product = Wide{cost} * times;
      const int64_t amount = product < kForbidden ? static_cast<int64_t>(product) : kForbidden - 1;
      const auto bits = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(amount)));
      here[bits] = std::max(here[bits], amount);
      least[bits] = std::min(least[bits], amount);
    }
    for (size_t bits = 0, most = 0; bits < kBits; ++bits) {
      most = std::max(most, static_cast<size_t>(here[bits]));
      dearest[bits] += static_cast<Wide>(most);
    }
  };
  for (const AssignmentNode& node : problem.nodes) look(node.costs, node.times);
  for (const AssignmentEdge& edge : problem.edges) look(problem.matrices[edge.matrix].costs, edge.times);
  int64_t above = kForbidden;
  for (size_t bits = kBits - 1; bits-- > 0;) {
    above = std::min(above, least[bits + 1]);
    if (above != kForbidden && Wide{above} > dearest[bits]) return above;
  }
  return kForbidden;
}

}  // namespace

PairwiseModel pairwise_model(const AssignmentProblem& problem) {
  const auto cost_of = [](int64_t cost, int64_t times) {
    return cost == kForbidden ? kInfinite : std::min(static_cast<double>(cost) * static_cast<double>(times), kMostCost);
  };
  std::vector<std::vector<double>> unary(problem.nodes.size());
  for (size_t i = 0; i < unary.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    for (size_t s = 0; s < node.costs.size(); ++s) {
      const bool may = node.pinned < 0 || static_cast<int64_t>(s) == node.pinned;
      unary[i].push_back(may ? cost_of(node.costs[s], node.times) : kInfinite);
    }
  }
  PairwiseModel model(std::move(unary));
  for (const AssignmentEdge& edge : problem.edges) {
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    PairTable table{.rows = matrix.rows, .columns = matrix.columns};
    for (const int64_t cost : matrix.costs) table.costs.push_back(cost_of(cost, edge.times));
    model.add_edge(edge.a, edge.b, std::move(table));
  }
  return model;
}

std::optional<AssignmentProblem> without_costs_above_all(const AssignmentProblem& problem) {
  const int64_t huge = cost_above_all(problem);
  if (huge == kForbidden) return std::nullopt;
  AssignmentProblem strict = problem;
  const auto forbid = [huge](std::vector<int64_t>& costs, int64_t times) {
    for (int64_t& cost : costs) cost = Wide{cost} * times >= huge ? kForbidden : cost;
  };
  std::vector<int64_t> times(problem.matrices.size(), 0);
  for (AssignmentNode& node : strict.nodes) forbid(node.costs, node.times);
  for (const AssignmentEdge& edge : problem.edges) {
    times[edge.matrix] = times[edge.matrix] == 0 ? edge.times : std::min(times[edge.matrix], edge.times);
  }
  for (size_t m = 0; m < times.size(); ++m) forbid(strict.matrices[m].costs, times[m]);
  return strict;
}

}  // namespace shadowgraph
