#include "sharding/solver/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "shadowgraph/shard/solver.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

void check_intervals(std::span<const LiveInterval> live, const std::string& where) {
  std::vector<LiveInterval> sorted(live.begin(), live.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].end <= sorted[i].begin || sorted[i].count < 1) throw Error(where + " has an empty live interval");
    if (i > 0 && sorted[i].begin < sorted[i - 1].end) throw Error(where + " has overlapping live intervals");
  }
}

void check_not_negative(std::span<const int64_t> numbers, const std::string& where, const char* what) {
  if (std::ranges::any_of(numbers, [](int64_t x) { return x < 0; })) {
    throw Error(fmt::format("{} has a negative {}", where, what));
  }
}

// A change in usage at a point of time; negative at the end of a use.
template <class Amount>
struct Change {
  int64_t time = 0;
  Amount amount = 0;
};

// Returns the maximum prefix sum of changes, and the first point that reaches it.
template <class Amount>
void find_peak(std::vector<Change<Amount>>& changes, AssignmentCost& result) {
  using Wide = AssignmentCost::Wide;
  if (changes.empty()) return;
  const auto [first, last] = std::ranges::minmax(changes, {}, &Change<Amount>::time);
  const Wide span = Wide{last.time} - first.time + 1;
  Wide usage = 0;
  const auto look = [&](int64_t time) {
    if (usage <= result.peak) return;
    result.peak = usage;
    result.peak_at = time;
  };
  // A program has as many points as nodes, so a prefix sum over points needs no sorting.
  constexpr int64_t kSparse = 4;
  if (span <= static_cast<Wide>(changes.size()) * kSparse) {
    std::vector<Wide> at(static_cast<size_t>(span), 0);
    for (const Change<Amount>& change : changes) at[static_cast<size_t>(change.time - first.time)] += change.amount;
    for (size_t i = 0; i < at.size(); ++i) {
      usage += at[i];
      look(first.time + static_cast<int64_t>(i));
    }
    return;
  }
  std::ranges::sort(changes, {}, &Change<Amount>::time);
  for (size_t i = 0; i < changes.size();) {
    const int64_t time = changes[i].time;
    for (; i < changes.size() && changes[i].time == time; ++i) usage += changes[i].amount;
    look(time);
  }
}

// Returns false if an amount has more bits than `Amount`.
template <class Amount>
bool evaluate_in(const AssignmentProblem& problem, std::span<const uint32_t> choice, AssignmentCost& result) {
  using Wide = AssignmentCost::Wide;
  std::vector<Change<Amount>> changes;
  changes.reserve(2 * problem.nodes.size());
  bool fits = true;
  const auto live = [&](std::span<const LiveInterval> intervals, int64_t usage) {
    if (usage == 0) return;
    for (const LiveInterval& interval : intervals) {
      Amount amount = 0;
      fits = fits && !__builtin_mul_overflow(Amount{usage}, Amount{interval.count}, &amount);
      changes.push_back({interval.begin, amount});
      changes.push_back({interval.end, -amount});
    }
  };
  const auto pay = [&](int64_t cost, int64_t times) {
    if (cost == kForbidden) {
      result.allowed = false;
    } else {
      result.cost += Wide{cost} * times;
    }
  };
  // Nodes are scattered in memory: prefetch some nodes ahead.
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (i + kAhead < problem.nodes.size()) {
      const AssignmentNode& ahead = problem.nodes[i + kAhead];
      __builtin_prefetch(ahead.costs.data());
      __builtin_prefetch(ahead.usages.data());
      __builtin_prefetch(ahead.live.data());
    }
    const AssignmentNode& node = problem.nodes[i];
    if (choice[i] >= node.costs.size()) throw Error(fmt::format("node {} has no strategy {}", i, choice[i]));
    if (node.pinned >= 0 && choice[i] != static_cast<uint32_t>(node.pinned)) result.allowed = false;
    pay(node.costs[choice[i]], node.times);
    if (!node.usages.empty()) live(node.live, node.usages[choice[i]]);
  }
  for (const AssignmentEdge& edge : problem.edges) {
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    const size_t at = size_t{choice[edge.a]} * matrix.columns + choice[edge.b];
    pay(matrix.costs[at], edge.times);
    if (!matrix.usages.empty()) live(edge.live, matrix.usages[at]);
  }
  if (fits) find_peak(changes, result);
  return fits;
}

using Wide = AssignmentCost::Wide;
using Used = std::pair<Wide, std::string>;

std::string words(std::vector<Used> alive) {
  std::stable_sort(alive.begin(), alive.end(), [](const Used& a, const Used& b) { return a.first > b.first; });
  constexpr size_t kNamed = 5;
  std::string most;
  for (size_t i = 0; i < alive.size() && i < kNamed; ++i) {
    most += fmt::format("{}{} ({})", most.empty() ? "" : ", ", alive[i].second,
                        human_bytes(static_cast<int64_t>(alive[i].first)));
  }
  if (alive.size() > kNamed) most += fmt::format(" and {} more", alive.size() - kNamed);
  return most;
}

int64_t count_at(std::span<const LiveInterval> live, int64_t time) {
  const auto holds = [&](const LiveInterval& x) { return x.begin <= time && time < x.end; };
  const auto found = std::find_if(live.begin(), live.end(), holds);
  return found == live.end() ? 0 : found->count;
}

}  // namespace

void AssignmentProblem::check() const {
  if (usage_limit < 0) throw Error("the usage limit must not be negative");
  for (size_t i = 0; i < nodes.size(); ++i) {
    const AssignmentNode& node = nodes[i];
    const std::string where = fmt::format("node {} {}", i, node.name);
    if (node.costs.empty()) throw Error(where + " has no strategies");
    if (!node.usages.empty() && node.usages.size() != node.costs.size()) {
      throw Error(fmt::format("{} has {} costs but {} usages", where, node.costs.size(), node.usages.size()));
    }
    if (!node.strategies.empty() && node.strategies.size() != node.costs.size()) {
      throw Error(
          fmt::format("{} has {} costs but {} strategy names", where, node.costs.size(), node.strategies.size()));
    }
    if (node.times < 1) throw Error(where + " has a multiplicity (times) below 1");
    if (node.pinned >= static_cast<int64_t>(node.costs.size())) throw Error(where + " is pinned to a missing strategy");
    check_not_negative(node.costs, where, "cost");
    check_not_negative(node.usages, where, "usage");
    check_intervals(node.live, where);
  }
  for (size_t m = 0; m < matrices.size(); ++m) {
    const CostMatrix& matrix = matrices[m];
    const std::string where = fmt::format("matrix {}", m);
    if (matrix.costs.size() != size_t{matrix.rows} * matrix.columns)
      throw Error(where + " has a wrong number of costs");
    if (!matrix.usages.empty() && matrix.usages.size() != matrix.costs.size()) {
      throw Error(where + " has a wrong number of usages");
    }
    check_not_negative(matrix.costs, where, "cost");
    check_not_negative(matrix.usages, where, "usage");
  }
  for (size_t e = 0; e < edges.size(); ++e) {
    const AssignmentEdge& edge = edges[e];
    const std::string where = fmt::format("edge {}", e);
    if (edge.a >= nodes.size() || edge.b >= nodes.size()) throw Error(where + " refers to a missing node");
    if (edge.matrix >= matrices.size()) throw Error(where + " refers to a missing matrix");
    const CostMatrix& matrix = matrices[edge.matrix];
    if (matrix.rows != nodes[edge.a].costs.size() || matrix.columns != nodes[edge.b].costs.size()) {
      throw Error(fmt::format("{} has a matrix of {} x {} between nodes of {} and {} strategies", where, matrix.rows,
                              matrix.columns, nodes[edge.a].costs.size(), nodes[edge.b].costs.size()));
    }
    if (edge.times < 1) throw Error(where + " has a multiplicity (times) below 1");
    check_intervals(edge.live, where);
  }
}

AssignmentCost evaluate(const AssignmentProblem& problem, std::span<const uint32_t> choice) {
  if (choice.size() != problem.nodes.size()) {
    throw Error(fmt::format("got {} choices for {} nodes", choice.size(), problem.nodes.size()));
  }
  AssignmentCost result;
  if (!evaluate_in<int64_t>(problem, choice, result)) {
    result = AssignmentCost();
    evaluate_in<AssignmentCost::Wide>(problem, choice, result);
  }
  result.within_limit = problem.usage_limit == kNoLimit || result.peak <= problem.usage_limit;
  return result;
}

MinimumUsages::MinimumUsages(const AssignmentProblem& problem) : problem_(problem) {
  std::map<int64_t, Wide> changes;
  std::vector<int64_t> needs(problem.nodes.size(), 0);
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.usages.empty()) continue;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t s = 0; s < node.costs.size(); ++s) {
      const bool may = node.pinned < 0 || static_cast<int64_t>(s) == node.pinned;
      if (may && node.costs[s] != kForbidden) least = std::min(least, node.usages[s]);
    }
    if (least == std::numeric_limits<int64_t>::max()) continue;  // no strategy at all: reported separately
    needs[i] = least;
    for (const LiveInterval& interval : node.live) {
      changes[interval.begin] += Wide{least} * interval.count;
      changes[interval.end] -= Wide{least} * interval.count;
    }
  }
  Wide usage = 0;
  for (const auto& [time, change] : changes) {
    usage += change;
    if (usage <= peak_) continue;
    peak_ = usage;
    at_ = time;
  }
  std::vector<Used> alive;
  for (size_t i = 0; i < needs.size(); ++i) {
    const Wide used = Wide{needs[i]} * count_at(problem.nodes[i].live, at_);
    if (used > 0) alive.emplace_back(used, problem.nodes[i].name);
  }
  most_ = words(std::move(alive));
}

bool MinimumUsages::exceed_limit() const { return peak_ > problem_.usage_limit; }

std::string MinimumUsages::to_text(bool shown) const {
  if (problem_.usage_limit == kNoLimit) return shown ? "No choice is feasible" : "No feasible choice was found in time";
  const std::string together = human_bytes(static_cast<int64_t>(peak_));
  const std::string limit = human_bytes(problem_.usage_limit);
  if (exceed_limit()) {
    return fmt::format("At point {} the minimum usages of all nodes sum to {}, above the limit of {}; the largest: {}",
                       at_, together, limit, most_);
  }
  return fmt::format("{}; the minimum usages of all nodes sum to {} at point {}, of {}; the largest: {}",
                     shown ? "No choice is feasible: strategies that fit next to the minimum of all others conflict"
                           : "No feasible choice was found",
                     together, at_, limit, most_);
}

std::string most_used_at(const AssignmentProblem& problem, std::span<const uint32_t> choice, int64_t time) {
  std::vector<Used> alive;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.usages.empty()) continue;
    const Wide used = Wide{node.usages[choice[i]]} * count_at(node.live, time);
    if (used > 0) alive.emplace_back(used, node.name);
  }
  for (const AssignmentEdge& edge : problem.edges) {
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    if (matrix.usages.empty()) continue;
    const Wide used =
        Wide{matrix.usages[size_t{choice[edge.a]} * matrix.columns + choice[edge.b]]} * count_at(edge.live, time);
    if (used > 0) {
      alive.emplace_back(used, fmt::format("{} as used by {}", problem.nodes[edge.a].name, problem.nodes[edge.b].name));
    }
  }
  return words(std::move(alive));
}

}  // namespace shadowgraph
