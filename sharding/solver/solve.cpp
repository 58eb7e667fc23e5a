#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "shadowgraph/profile/units.h"
#include "shadowgraph/sharding/solver.h"
#include "sharding/solver/limited.h"
#include "sharding/solver/minimum.h"

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;

// Costs above it count as it: bounds stay bounds, sums stay exact in doubles, and choices are weighed by evaluate().
constexpr double kMostCost = 0x1p45;
// Of the time, for the problem without its limit.
constexpr double kShareWithoutLimit = 0.08;

// Without the limit.
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

// The least cost, multiplied out, above which every cost is more than the dearest choice without such costs; kForbidden if
// there is none. Other formats have no word for what is forbidden, and write such costs.
int64_t cost_above_all(const AssignmentProblem& problem) {
  // By bits: the largest cost of that many of each node and edge, summed, and the least one with more.
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

class Solver {
 public:
  Solver(const AssignmentProblem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), start_(std::chrono::steady_clock::now()) {}

  AssignmentSolution run() {
    const bool limited = problem_.usage_limit != kNoLimit;
    const double share = limited ? kShareWithoutLimit : 1;
    const Minimum free =
        minimum_of(pairwise_model(problem_),
                   {.gap = options_.gap, .table_limit = options_.table_limit, .split = !limited, .out_of_time = [&] {
                      return seconds() > share * options_.time_limit;
                    }});
    solution_.largest_table = free.largest_table;
    if (!free.possible) {
      solution_.stopped = "infeasible";
      solution_.why_infeasible = free.impossible_node == kNoNode
                                     ? "the pins and what is written to in place leave no choice that agrees"
                                     : fmt::format("{} has no strategy left that its neighbours and the pins allow",
                                                   problem_.nodes[free.impossible_node].name);
      return solution_;
    }
    bound_ = static_cast<Wide>(std::max(free.bound, 0.0));
    if (!free.choice.empty()) take(free.choice);
    if (!options_.start.empty()) take(options_.start);
    if (problem_.usage_limit != kNoLimit && (!solution_.feasible || !is_good_enough())) {
      keep_within_limit(free.choice);
    }
    solution_.lower_bound = bound_;
    if (!solution_.feasible) {
      explain();
    } else {
      solution_.lower_bound = std::min(solution_.lower_bound, solution_.cost);
      solution_.optimal = solution_.lower_bound == solution_.cost;
    }
    solution_.stopped = is_impossible_      ? "infeasible"
                        : solution_.optimal ? "optimal"
                        : is_good_enough()  ? "gap"
                        : out_of_time()     ? "time"
                                            : "work";
    return solution_;
  }

 private:
  // ---- Choices

  void take(const std::vector<uint32_t>& choice) {
    const AssignmentCost cost = evaluate(problem_, choice);
    if (!cost.feasible() || (solution_.feasible && cost.cost >= solution_.cost)) return;
    solution_.feasible = true;
    solution_.choice = choice;
    solution_.cost = cost.cost;
    solution_.peak = cost.peak;
    solution_.peak_at = cost.peak_at;
  }

  bool is_good_enough() const {
    return solution_.feasible &&
           static_cast<double>(solution_.cost - bound_) <= options_.gap * static_cast<double>(solution_.cost);
  }

  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  bool out_of_time() const { return seconds() > options_.time_limit; }

  // ---- Limits

  void keep_within_limit(const std::vector<uint32_t>& free) {
    LimitedOptions options{
        .gap = options_.gap, .bound = static_cast<double>(bound_), .iterations = options_.iterations};
    options.moves = options_.moves;
    options.threads = options_.threads;
    options.time_spent = [this] { return seconds() / options_.time_limit; };
    options.take = [&](const std::vector<uint32_t>& choice) {
      take(choice);
      return solution_.feasible ? static_cast<double>(solution_.cost) : kInfinite;
    };
    for (const std::vector<uint32_t>* start : {&free, &options_.start}) {
      if (start->size() == problem_.nodes.size()) options.starts.push_back(*start);
    }
    if (solution_.feasible) options.best = static_cast<double>(solution_.cost);
    const Limited limited = search_within_limit(problem_, pairwise_model(problem_), options);
    bound_ = std::max(bound_, static_cast<Wide>(std::ceil(limited.bound)));
    solution_.priced = limited.priced;
    is_impossible_ = !limited.possible;
  }

  // Why nothing fits: the least that each thing alive at the worst point needs.
  void explain() {
    std::map<int64_t, Wide> least;
    const auto add = [&](std::span<const LiveInterval> live, int64_t usage) {
      for (const LiveInterval& interval : live) {
        least[interval.begin] += Wide{usage} * interval.count;
        least[interval.end] -= Wide{usage} * interval.count;
      }
    };
    std::vector<int64_t> needs(problem_.nodes.size(), 0);
    for (size_t i = 0; i < problem_.nodes.size(); ++i) {
      const AssignmentNode& node = problem_.nodes[i];
      if (node.usages.empty()) continue;
      needs[i] = std::numeric_limits<int64_t>::max();
      for (uint32_t s = 0; s < node.costs.size(); ++s) {
        const bool may = node.pinned < 0 || static_cast<int64_t>(s) == node.pinned;
        if (may && node.costs[s] != kForbidden) needs[i] = std::min(needs[i], node.usages[s]);
      }
      add(node.live, needs[i]);
    }
    Wide usage = 0;
    Wide peak = 0;
    int64_t at = 0;
    for (const auto& [time, change] : least) {
      usage += change;
      if (usage > peak) {
        peak = usage;
        at = time;
      }
    }
    std::vector<std::pair<Wide, std::string>> alive;
    for (size_t i = 0; i < needs.size(); ++i) {
      for (const LiveInterval& interval : problem_.nodes[i].live) {
        if (interval.begin <= at && at < interval.end && needs[i] > 0) {
          alive.emplace_back(Wide{needs[i]} * interval.count, problem_.nodes[i].name);
        }
      }
    }
    std::sort(alive.begin(), alive.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    constexpr size_t kNamed = 5;
    std::string most;
    for (size_t i = 0; i < alive.size() && i < kNamed; ++i) {
      most += fmt::format("{}{} ({})", most.empty() ? "" : ", ", alive[i].second,
                          human_bytes(static_cast<int64_t>(alive[i].first)));
    }
    if (alive.size() > kNamed) most += fmt::format(" and {} more", alive.size() - kNamed);
    const std::string least_together = human_bytes(static_cast<int64_t>(peak));
    const std::string limit = human_bytes(problem_.usage_limit);
    if (peak > problem_.usage_limit) {
      is_impossible_ = true;
      solution_.why_infeasible =
          fmt::format("At point {} the least that each needs is {} together, where {} are allowed; the most of it: {}",
                      at, least_together, limit, most);
    } else {
      solution_.why_infeasible = fmt::format(
          "{}; the least that each needs by itself is {} at point {}, of {}; the most of it: {}",
          is_impossible_ ? "None exists: states that fit next to the least of all others do not fit each other"
                         : "None was found at any prices of usages",
          least_together, at, limit, most);
    }
  }

  const AssignmentProblem& problem_;
  const SolveOptions& options_;
  const std::chrono::steady_clock::time_point start_;
  AssignmentSolution solution_;
  Wide bound_ = 0;
  bool is_impossible_ = false;  // shown
};

}  // namespace

AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options) {
  problem.check();
  const int64_t huge = cost_above_all(problem);
  if (huge == kForbidden) return Solver(problem, options).run();
  // What is above all else together is as good as forbidden, and much is decided by what is forbidden.
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
  AssignmentSolution solution = Solver(strict, options).run();
  if (solution.feasible || solution.stopped == "time") return solution;
  return Solver(problem, options).run();
}

}  // namespace shadowgraph
