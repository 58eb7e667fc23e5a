#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "shadowgraph/sharding/solver.h"
#include "sharding/solver/elimination.h"
#include "sharding/solver/minimum.h"

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;

int64_t scaled_cost(int64_t cost, int64_t times) {
  if (cost == kForbidden) return kImpossible;
  int64_t product = 0;
  if (__builtin_mul_overflow(cost, times, &product)) return kImpossible;
  return std::min(product, kImpossible);
}

// Usages over time, of one choice: at each point where something begins.
struct UsageProfile {
  std::vector<std::pair<int64_t, Wide>> points;
  Wide peak = 0;
  int64_t peak_at = 0;
};

class Solver {
 public:
  Solver(const AssignmentProblem& problem, const SolveOptions& options)
      : problem_(problem), options_(options), start_(std::chrono::steady_clock::now()) {}

  AssignmentSolution run() {
    problem_.check();
    const Minimum free = minimum_of(
        free_model(),
        {.gap = options_.gap, .table_limit = options_.table_limit, .out_of_time = [this] { return out_of_time(); }});
    solution_.largest_table = free.largest_table;
    if (!free.possible) {
      solution_.why_infeasible = free.impossible_node == kNoNode
                                     ? "the pins and what is written to in place leave no choice that agrees"
                                     : fmt::format("{} has no strategy left that its neighbours and the pins allow",
                                                   problem_.nodes[free.impossible_node].name);
      return solution_;
    }
    bound_ = static_cast<Wide>(free.bound);
    if (!free.choice.empty()) take(free.choice);
    if (!options_.start.empty()) take(options_.start);
    if (problem_.usage_limit != kNoLimit && (!solution_.feasible || !is_good_enough())) {
      make_tables();
      order_ = elimination_order(domains_, tables_);
      keep_within_limit();
    }
    solution_.lower_bound = bound_;
    if (!solution_.feasible) {
      explain();
    } else {
      solution_.lower_bound = std::min(solution_.lower_bound, solution_.cost);
      solution_.optimal = solution_.lower_bound == solution_.cost;
    }
    return solution_;
  }

 private:
  // Without the limit.
  PairwiseModel free_model() const {
    const auto cost_of = [](int64_t cost, int64_t times) {
      return cost == kForbidden ? kInfinite : static_cast<double>(cost) * static_cast<double>(times);
    };
    std::vector<std::vector<double>> unary(problem_.nodes.size());
    for (size_t i = 0; i < unary.size(); ++i) {
      const AssignmentNode& node = problem_.nodes[i];
      for (size_t s = 0; s < node.costs.size(); ++s) {
        const bool may = node.pinned < 0 || static_cast<int64_t>(s) == node.pinned;
        unary[i].push_back(may ? cost_of(node.costs[s], node.times) : kInfinite);
      }
    }
    PairwiseModel model(std::move(unary));
    for (const AssignmentEdge& edge : problem_.edges) {
      const CostMatrix& matrix = problem_.matrices[edge.matrix];
      PairTable table{.rows = matrix.rows, .columns = matrix.columns};
      for (const int64_t cost : matrix.costs) table.costs.push_back(cost_of(cost, edge.times));
      model.add_edge(edge.a, edge.b, std::move(table));
    }
    return model;
  }

  // ---- What is left of the problem without strategies that are never allowed

  void make_tables() {
    const size_t count = problem_.nodes.size();
    strategies_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const AssignmentNode& node = problem_.nodes[i];
      for (uint32_t s = 0; s < node.costs.size(); ++s) {
        if (node.costs[s] == kForbidden || (node.pinned >= 0 && static_cast<int64_t>(s) != node.pinned)) continue;
        strategies_[i].push_back(s);
      }
    }
    drop_unsupported();
    for (size_t i = 0; i < count; ++i) {
      if (strategies_[i].empty()) {
        contradiction_ =
            fmt::format("{} has no strategy left that its neighbours and the pins allow", problem_.nodes[i].name);
        return;
      }
      domains_.push_back(static_cast<uint32_t>(strategies_[i].size()));
      CostTable table{.variables = {static_cast<uint32_t>(i)}};
      for (const uint32_t s : strategies_[i]) {
        table.costs.push_back(scaled_cost(problem_.nodes[i].costs[s], problem_.nodes[i].times));
      }
      tables_.push_back(std::move(table));
    }
    std::map<std::pair<uint32_t, uint32_t>, size_t> of_pair;
    for (const AssignmentEdge& edge : problem_.edges) add_edge(edge, of_pair);
  }

  void add_edge(const AssignmentEdge& edge, std::map<std::pair<uint32_t, uint32_t>, size_t>& of_pair) {
    const CostMatrix& matrix = problem_.matrices[edge.matrix];
    if (edge.a == edge.b) {
      for (size_t s = 0; s < strategies_[edge.a].size(); ++s) {
        int64_t& cost = tables_[edge.a].costs[s];
        cost = std::min(cost + scaled_cost(matrix.at(strategies_[edge.a][s], strategies_[edge.a][s]), edge.times),
                        kImpossible);
      }
      return;
    }
    const auto [low, high] = std::minmax(edge.a, edge.b);
    const auto [found, is_new] = of_pair.try_emplace({low, high}, tables_.size());
    if (is_new) {
      tables_.push_back({.variables = {low, high},
                         .costs = std::vector<int64_t>(strategies_[low].size() * strategies_[high].size(), 0)});
    }
    std::vector<int64_t>& costs = tables_[found->second].costs;
    size_t at = 0;
    for (const uint32_t i : strategies_[low]) {
      for (const uint32_t j : strategies_[high]) {
        const int64_t cost = edge.a == low ? matrix.at(i, j) : matrix.at(j, i);
        costs[at] = std::min(costs[at] + scaled_cost(cost, edge.times), kImpossible);
        ++at;
      }
    }
  }

  // Strategies that a neighbour allows with none of its own, until there are no more of them.
  void drop_unsupported() {
    for (bool changed = true; changed;) {
      changed = false;
      for (const AssignmentEdge& edge : problem_.edges) {
        const CostMatrix& matrix = problem_.matrices[edge.matrix];
        if (edge.a == edge.b) continue;
        const auto drop = [&](uint32_t node, uint32_t other, bool rows) {
          changed |= std::erase_if(strategies_[node], [&](uint32_t s) {
                       return std::none_of(strategies_[other].begin(), strategies_[other].end(), [&](uint32_t t) {
                         return (rows ? matrix.at(s, t) : matrix.at(t, s)) != kForbidden;
                       });
                     }) > 0;
        };
        drop(edge.a, edge.b, true);
        drop(edge.b, edge.a, false);
      }
    }
  }

  std::vector<uint32_t> choice_of(const Elimination& elimination) const {
    std::vector<uint32_t> choice(strategies_.size());
    for (size_t i = 0; i < choice.size(); ++i) choice[i] = strategies_[i][elimination.choice[i]];
    return choice;
  }

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

  bool out_of_time() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count() > options_.time_limit;
  }

  // One node after another takes what is best with its neighbours as they are; rounds until nothing changes. Only where
  // a split table may have missed it.
  std::vector<uint32_t> improved(std::vector<uint32_t> choice) {
    std::vector<std::vector<uint32_t>> edges_of(problem_.nodes.size());
    for (uint32_t e = 0; e < problem_.edges.size(); ++e) {
      edges_of[problem_.edges[e].a].push_back(e);
      if (problem_.edges[e].a != problem_.edges[e].b) edges_of[problem_.edges[e].b].push_back(e);
    }
    for (int round = 0; round < 20; ++round) {
      bool changed = false;
      for (uint32_t v = 0; v < choice.size(); ++v) {
        int64_t best = kImpossible + 1;
        uint32_t best_strategy = choice[v];
        for (const uint32_t s : strategies_[v]) {
          int64_t cost = scaled_cost(problem_.nodes[v].costs[s], problem_.nodes[v].times);
          for (const uint32_t e : edges_of[v]) {
            const AssignmentEdge& edge = problem_.edges[e];
            const uint32_t i = edge.a == v ? s : choice[edge.a];
            const uint32_t j = edge.b == v ? s : choice[edge.b];
            cost = std::min(cost + scaled_cost(problem_.matrices[edge.matrix].at(i, j), edge.times), kImpossible);
          }
          if (cost < best || (cost == best && s == choice[v])) {
            best = cost;
            best_strategy = s;
          }
        }
        changed |= best_strategy != choice[v];
        choice[v] = best_strategy;
      }
      if (!changed) break;
    }
    return choice;
  }

  // ---- Limits

  UsageProfile profile(const std::vector<uint32_t>& choice) const {
    std::vector<std::pair<int64_t, Wide>> events;
    const auto live = [&](std::span<const LiveInterval> intervals, int64_t usage) {
      if (usage == 0) return;
      for (const LiveInterval& interval : intervals) {
        events.emplace_back(interval.begin, Wide{usage} * interval.count);
        events.emplace_back(interval.end, -(Wide{usage} * interval.count));
      }
    };
    for (size_t i = 0; i < choice.size(); ++i) {
      const AssignmentNode& node = problem_.nodes[i];
      if (!node.usages.empty()) live(node.live, node.usages[choice[i]]);
    }
    for (const AssignmentEdge& edge : problem_.edges) {
      const CostMatrix& matrix = problem_.matrices[edge.matrix];
      if (!matrix.usages.empty()) {
        live(edge.live, matrix.usages[size_t{choice[edge.a]} * matrix.columns + choice[edge.b]]);
      }
    }
    std::sort(events.begin(), events.end());
    UsageProfile profile;
    Wide usage = 0;
    for (size_t i = 0; i < events.size();) {
      const int64_t at = events[i].first;
      for (; i < events.size() && events[i].first == at; ++i) usage += events[i].second;
      profile.points.emplace_back(at, usage);
      if (usage > profile.peak) {
        profile.peak = usage;
        profile.peak_at = at;
      }
    }
    return profile;
  }

  static Wide usage_at(const UsageProfile& profile, int64_t time) {
    const auto after = std::upper_bound(profile.points.begin(), profile.points.end(), time,
                                        [](int64_t t, const auto& point) { return t < point.first; });
    return after == profile.points.begin() ? 0 : std::prev(after)->second;
  }

  // What a byte costs that is alive in these intervals.
  double price_of(std::span<const LiveInterval> live) const {
    double price = 0;
    for (const LiveInterval& interval : live) {
      for (auto at = prices_.lower_bound(interval.begin); at != prices_.end() && at->first < interval.end; ++at) {
        price += at->second * static_cast<double>(interval.count);
      }
    }
    return price;
  }

  static int64_t priced_cost(int64_t cost, double price, int64_t usage) {
    const double more = std::floor(price * static_cast<double>(usage));
    return more >= static_cast<double>(kImpossible) ? kImpossible
                                                    : std::min(cost + static_cast<int64_t>(more), kImpossible);
  }

  std::vector<CostTable> priced_tables() const {
    std::vector<CostTable> tables = tables_;
    for (size_t i = 0; i < strategies_.size(); ++i) {
      const AssignmentNode& node = problem_.nodes[i];
      if (node.usages.empty()) continue;
      const double price = price_of(node.live);
      for (size_t s = 0; s < strategies_[i].size(); ++s) {
        tables[i].costs[s] = priced_cost(tables[i].costs[s], price, node.usages[strategies_[i][s]]);
      }
    }
    std::map<std::pair<uint32_t, uint32_t>, size_t> of_pair;
    for (size_t t = strategies_.size(); t < tables.size(); ++t) {
      of_pair[{tables[t].variables[0], tables[t].variables[1]}] = t;
    }
    for (const AssignmentEdge& edge : problem_.edges) {
      const CostMatrix& matrix = problem_.matrices[edge.matrix];
      const double price = matrix.usages.empty() ? 0 : price_of(edge.live);
      if (price == 0) continue;
      const auto usage = [&](uint32_t i, uint32_t j) { return matrix.usages[size_t{i} * matrix.columns + j]; };
      if (edge.a == edge.b) {
        for (size_t s = 0; s < strategies_[edge.a].size(); ++s) {
          const uint32_t i = strategies_[edge.a][s];
          tables[edge.a].costs[s] = priced_cost(tables[edge.a].costs[s], price, usage(i, i));
        }
        continue;
      }
      const auto [low, high] = std::minmax(edge.a, edge.b);
      std::vector<int64_t>& costs = tables[of_pair.at({low, high})].costs;
      size_t at = 0;
      for (const uint32_t i : strategies_[low]) {
        for (const uint32_t j : strategies_[high]) {
          costs[at] = priced_cost(costs[at], price, edge.a == low ? usage(i, j) : usage(j, i));
          ++at;
        }
      }
    }
    return tables;
  }

  struct Priced {
    std::vector<uint32_t> choice;
    UsageProfile profile;
  };
  // The best choice at the prices; its value, less what the limit is worth, is a bound.
  Priced solve_at_prices() {
    const Elimination found = eliminate(domains_, priced_tables(), order_, options_.table_limit);
    solution_.largest_table = std::max(solution_.largest_table, found.largest);
    double worth = 0;
    for (const auto& [time, price] : prices_) worth += price * static_cast<double>(problem_.usage_limit);
    const double value = static_cast<double>(found.minimum) - worth;
    // A double holds 53 bits of it; the rest is given away.
    const double safe = value - std::abs(worth) * 1e-14 - 1;
    if (safe > 0) bound_ = std::max(bound_, static_cast<Wide>(safe));
    Priced priced{.choice = choice_of(found)};
    priced.profile = profile(priced.choice);
    take(priced.choice);
    return priced;
  }

  // Points of time where a choice is most above the limit, and apart from each other.
  void price_violations(const UsageProfile& profile) {
    std::vector<std::pair<Wide, int64_t>> above;
    for (size_t i = 0; i < profile.points.size(); ++i) {
      const auto& [time, usage] = profile.points[i];
      if (usage <= problem_.usage_limit) continue;
      const bool local_peak = (i == 0 || profile.points[i - 1].second <= usage) &&
                              (i + 1 == profile.points.size() || profile.points[i + 1].second <= usage);
      if (local_peak) above.emplace_back(-usage, time);
    }
    std::sort(above.begin(), above.end());
    for (size_t i = 0; i < above.size() && i < 4; ++i) prices_.try_emplace(above[i].second, 0);
  }

  void keep_within_limit() {
    // One price for all points that are above, until nothing is: a first choice that is allowed.
    prices_.clear();
    Priced priced{.choice = choice_of(eliminate(domains_, tables_, order_, options_.table_limit))};
    priced.profile = profile(priced.choice);
    double price = 1e-3;
    double too_low = 0;
    std::map<int64_t, double> feasible_prices;
    for (int i = 0; i < 60 && !out_of_time(); ++i) {
      price_violations(priced.profile);
      for (auto& [time, each] : prices_) each = price;
      priced = solve_at_prices();
      if (priced.profile.peak <= problem_.usage_limit) {
        feasible_prices = prices_;
        break;
      }
      too_low = price;
      price *= 2;
    }
    if (feasible_prices.empty()) return;
    for (int i = 0; i < 12 && !out_of_time() && !is_good_enough(); ++i) {
      const double middle = (too_low + price) / 2;
      for (auto& [time, each] : prices_) each = middle;
      priced = solve_at_prices();
      if (priced.profile.peak <= problem_.usage_limit) {
        price = middle;
      } else {
        too_low = middle;
        price_violations(priced.profile);
      }
    }
    subgradients(price);
    solution_.priced = static_cast<int>(prices_.size());
  }

  void subgradients(double price) {
    for (auto& [time, each] : prices_) each = price / static_cast<double>(std::max<size_t>(prices_.size(), 1));
    double pace = 1;
    Wide best = bound_;
    for (int i = 0; i < options_.iterations && !out_of_time() && !is_good_enough(); ++i) {
      const Priced priced = solve_at_prices();
      price_violations(priced.profile);
      pace = bound_ > best ? pace : pace * 0.93;
      best = bound_;
      double norm = 0;
      std::map<int64_t, double> slope;
      for (const auto& [time, each] : prices_) {
        const double g = static_cast<double>(usage_at(priced.profile, time) - problem_.usage_limit);
        slope[time] = each == 0 && g < 0 ? 0 : g;
        norm += slope[time] * slope[time];
      }
      if (norm == 0) break;
      const double target =
          solution_.feasible ? static_cast<double>(solution_.cost) : static_cast<double>(bound_) * 1.05;
      const double step = pace * std::max(target - static_cast<double>(bound_), 1.0) / norm;
      for (auto& [time, each] : prices_) each = std::max(0.0, each + step * slope[time]);
    }
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
      for (const uint32_t s : strategies_[i]) needs[i] = std::min(needs[i], node.usages[s]);
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
    std::string most;
    for (size_t i = 0; i < alive.size() && i < 5; ++i) {
      most += fmt::format("{}{} ({})", most.empty() ? "" : ", ", alive[i].second, static_cast<int64_t>(alive[i].first));
    }
    if (peak > problem_.usage_limit) {
      solution_.why_infeasible = fmt::format(
          "At point {} the least that each needs is {} bytes together, where {} are allowed; the most of it: {}", at,
          static_cast<int64_t>(peak), problem_.usage_limit, most);
    } else {
      solution_.why_infeasible = fmt::format(
          "None was found at prices up to where every tensor is as small as it can be next to its users; each by "
          "itself "
          "would need {} bytes at point {}, of {}; the most of it: {}",
          static_cast<int64_t>(peak), at, problem_.usage_limit, most);
    }
  }

  const AssignmentProblem& problem_;
  const SolveOptions& options_;
  const std::chrono::steady_clock::time_point start_;
  AssignmentSolution solution_;
  Wide bound_ = 0;
  std::string contradiction_;
  std::vector<std::vector<uint32_t>> strategies_;  // by node: those that are left
  std::vector<uint32_t> domains_;
  std::vector<CostTable> tables_;  // of nodes, then of pairs
  std::vector<uint32_t> order_;
  std::map<int64_t, double> prices_;  // by point of time: cost of a byte there
};

}  // namespace

AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options) {
  return Solver(problem, options).run();
}

}  // namespace shadowgraph
