#include "sharding/solver/local_search.h"

#include <algorithm>
#include <tuple>

namespace shadowgraph {

namespace {

constexpr uint32_t kNoParent = std::numeric_limits<uint32_t>::max();

struct TreeNode {
  uint32_t variable = 0;
  uint32_t parent = kNoParent;  // in the tree
  uint32_t edge = 0;            // to it
};

}  // namespace

LocalSearch::LocalSearch(const PairwiseModel& model, const UsageModel& usage, uint64_t seed)
    : model_(model), usage_(usage), random_(seed), stamp_(model.size(), 0) {
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (model.is_left(v) && model.states(v) > 1) variables_.push_back(v);
  }
  prices_.assign(usage.points(), 0);
  sums_.assign(usage.points() + 1, 0);
}

void LocalSearch::load(std::span<const uint32_t> states) {
  states_.assign(states.begin(), states.end());
  cost_ = model_.cost(states_);
  tree_ = usage_.tree(states_);
}

void LocalSearch::set_prices(std::span<const double> prices) {
  prices_.assign(prices.begin(), prices.end());
  for (size_t i = 0; i < prices_.size(); ++i) sums_[i + 1] = sums_[i] + prices_[i];
}

void LocalSearch::costs_of(uint32_t v, std::vector<double>& costs) const {
  costs = model_.unary(v);
  for (const uint32_t e : model_.edges_of(v)) {
    const PairwiseModel::Edge& edge = model_.edges()[e];
    const bool first = edge.a == v;
    const double* row = first ? edge.table->transposed.data() : edge.table->costs.data();
    row += size_t{states_[first ? edge.b : edge.a]} * costs.size();
    for (size_t s = 0; s < costs.size(); ++s) costs[s] += row[s];
  }
}

void LocalSearch::set(uint32_t v, uint32_t state) {
  usage_.move(tree_, v, states_[v], state);
  states_[v] = state;
}

uint32_t LocalSearch::random_variable() { return variables_[random_() % variables_.size()]; }

void LocalSearch::descend() {
  std::vector<double> costs;
  for (int round = 0; round < 10; ++round) {
    bool changed = false;
    for (const uint32_t v : variables_) {
      costs_of(v, costs);
      const uint32_t before = states_[v];
      const double now = costs[before];
      uint32_t best = before;
      for (uint32_t s = 0; s < costs.size(); ++s) {
        if (costs[s] >= costs[best]) continue;
        bool fits = true;
        for (const UsageItem& item : usage_.items(v)) {
          const double more = item.bytes[s] - item.bytes[before];
          if (more > 0 && tree_.highest(item.begin, item.end) + more > usage_.limit()) fits = false;
        }
        if (fits) best = s;
      }
      if (best == before) continue;
      set(v, best);
      if (tree_.highest() > usage_.limit()) {
        set(v, before);
        continue;
      }
      cost_ += costs[best] - now;
      changed = true;
    }
    if (!changed) break;
  }
}

std::vector<std::pair<uint32_t, uint32_t>> LocalSearch::move_tree(uint32_t root, uint32_t size, double scale) {
  ++stamps_;
  std::vector<TreeNode> nodes{{.variable = root}};
  std::vector<TreeNode> frontier;
  const auto other = [&](uint32_t e, uint32_t v) {
    const PairwiseModel::Edge& edge = model_.edges()[e];
    return edge.a == v ? edge.b : edge.a;
  };
  const auto reach = [&](uint32_t at) {
    stamp_[nodes[at].variable] = stamps_;
    for (const uint32_t e : model_.edges_of(nodes[at].variable)) {
      const uint32_t u = other(e, nodes[at].variable);
      if (stamp_[u] != stamps_ && model_.states(u) > 1) frontier.push_back({.variable = u, .parent = at, .edge = e});
    }
  };
  reach(0);
  while (!frontier.empty() && nodes.size() < size) {
    std::swap(frontier[random_() % frontier.size()], frontier.back());
    const TreeNode next = frontier.back();
    frontier.pop_back();
    if (stamp_[next.variable] == stamps_) continue;
    int inside = 0;
    for (const uint32_t e : model_.edges_of(next.variable)) {
      inside += stamp_[other(e, next.variable)] == stamps_ ? 1 : 0;
    }
    if (inside != 1) continue;
    nodes.push_back(next);
    reach(static_cast<uint32_t>(nodes.size() - 1));
  }
  // Up: what each state of a node costs with the best of all below it.
  std::vector<std::vector<double>> costs(nodes.size());
  std::vector<std::vector<uint32_t>> best(nodes.size());
  std::vector<double> priced;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint32_t v = nodes[i].variable;
    costs[i] = model_.unary(v);
    for (const uint32_t e : model_.edges_of(v)) {
      const uint32_t u = other(e, v);
      if (stamp_[u] == stamps_) continue;
      const PairwiseModel::Edge& edge = model_.edges()[e];
      const double* row = edge.a == v ? edge.table->transposed.data() : edge.table->costs.data();
      row += size_t{states_[u]} * costs[i].size();
      for (size_t s = 0; s < costs[i].size(); ++s) costs[i][s] += row[s];
    }
    if (scale > 0 && !usage_.items(v).empty()) {
      priced.assign(costs[i].size(), 0);
      usage_.add_price(v, sums_, priced);
      for (size_t s = 0; s < priced.size(); ++s) costs[i][s] += scale * priced[s];
    }
  }
  for (size_t i = nodes.size(); i-- > 1;) {
    const PairwiseModel::Edge& edge = model_.edges()[nodes[i].edge];
    std::vector<double>& above = costs[nodes[i].parent];
    const bool first = edge.a == nodes[i].variable;
    const AllowedPairs& few = first ? edge.table->allowed_transposed : edge.table->allowed;
    const double* row = first ? edge.table->transposed.data() : edge.table->costs.data();
    best[i].resize(above.size());
    for (size_t p = 0; p < above.size(); ++p, row += costs[i].size()) {
      double least = kInfinite;
      uint32_t at = 0;
      const auto look = [&](uint32_t s, double cost) {
        if (cost >= least) return;
        least = cost;
        at = s;
      };
      if (few.begin.empty()) {
        for (uint32_t s = 0; s < costs[i].size(); ++s) look(s, costs[i][s] + row[s]);
      } else {
        for (uint32_t k = few.begin[p]; k < few.begin[p + 1]; ++k) {
          look(few.column[k], costs[i][few.column[k]] + few.cost[k]);
        }
      }
      above[p] += least;
      best[i][p] = at;
    }
  }
  std::vector<std::pair<uint32_t, uint32_t>> before;
  std::vector<uint32_t> chosen(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint32_t v = nodes[i].variable;
    if (i == 0) {
      const auto least = std::min_element(costs[0].begin(), costs[0].end());
      if (*least == kInfinite) return {};
      chosen[0] = *least < costs[0][states_[v]] ? static_cast<uint32_t>(least - costs[0].begin()) : states_[v];
    } else {
      chosen[i] = best[i][chosen[nodes[i].parent]];
    }
    if (chosen[i] != states_[v]) before.emplace_back(v, states_[v]);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (chosen[i] != states_[nodes[i].variable]) set(nodes[i].variable, chosen[i]);
  }
  return before;
}

void LocalSearch::move_trees(int count, uint32_t size) {
  if (variables_.empty()) return;
  // What the moved variables and their edges cost, now or with other states.
  std::vector<uint32_t> seen(model_.edges().size(), 0);
  uint32_t round = 0;
  const auto cost_around = [&](const std::vector<std::pair<uint32_t, uint32_t>>& moved) {
    ++round;
    double sum = 0;
    for (const auto& [v, state] : moved) {
      sum += model_.unary(v)[states_[v]];
      for (const uint32_t e : model_.edges_of(v)) {
        if (seen[e] == round) continue;
        seen[e] = round;
        const PairwiseModel::Edge& edge = model_.edges()[e];
        sum += edge.table->at(states_[edge.a], states_[edge.b]);
      }
    }
    return sum;
  };
  for (int i = 0; i < count; ++i) {
    const double scale = scale_ * (0.5 + static_cast<double>(random_() % 1024) / 1024.0);
    const auto before = move_tree(random_variable(), size, i % 4 == 0 ? 0 : scale);
    if (before.empty()) continue;
    const double after_cost = cost_around(before);
    std::vector<std::pair<uint32_t, uint32_t>> after;
    for (const auto& [v, state] : before) after.emplace_back(v, states_[v]);
    const bool fits = tree_.highest() <= usage_.limit();
    for (const auto& [v, state] : before) set(v, state);
    const double before_cost = cost_around(before);
    if (i % 4 != 0) scale_ = std::clamp(scale_ * (fits ? 0.97 : 1.03), 0.05, 20.0);
    if (!fits || after_cost >= before_cost) continue;
    for (const auto& [v, state] : after) set(v, state);
    cost_ += after_cost - before_cost;
  }
}

bool LocalSearch::lower_highest() {
  const uint32_t at = tree_.highest_at();
  const double highest = tree_.highest();
  struct Candidate {
    double score = 0;
    uint32_t variable = 0;
    uint32_t state = 0;
  };
  std::vector<Candidate> candidates;
  std::vector<double> costs;
  std::vector<double> bytes;
  for (const uint32_t v : variables_) {
    bool alive = false;
    for (const UsageItem& item : usage_.items(v)) alive |= item.begin <= at && at < item.end;
    if (!alive) continue;
    bytes.assign(model_.states(v), 0);
    for (const UsageItem& item : usage_.items(v)) {
      if (item.begin > at || at >= item.end) continue;
      for (size_t s = 0; s < bytes.size(); ++s) bytes[s] += item.bytes[s];
    }
    const uint32_t now = states_[v];
    if (*std::min_element(bytes.begin(), bytes.end()) >= bytes[now]) continue;
    costs_of(v, costs);
    Candidate best{.score = kInfinite};
    for (uint32_t s = 0; s < costs.size(); ++s) {
      const double saved = std::min(bytes[now] - bytes[s], highest - usage_.limit());
      if (saved <= 0 || costs[s] == kInfinite) continue;
      const double score = std::max(costs[s] - costs[now], 0.0) / saved;
      if (score < best.score) best = {.score = score, .variable = v, .state = s};
    }
    if (best.score < kInfinite) candidates.push_back(best);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& x, const Candidate& y) {
    return std::tie(x.score, x.variable) < std::tie(y.score, y.variable);
  });
  for (const Candidate& candidate : candidates) {
    const uint32_t now = states_[candidate.variable];
    set(candidate.variable, candidate.state);
    if (tree_.highest() <= highest) return true;
    set(candidate.variable, now);
  }
  return false;
}

bool LocalSearch::repair(int trees) {
  if (variables_.empty()) return is_feasible();
  const std::vector<double> kept = prices_;
  // Trees at prices that rise where too much is used.
  double mean = 0;
  size_t priced = 0;
  for (const double price : prices_) {
    mean += price;
    priced += price > 0 ? 1 : 0;
  }
  mean = priced > 0 ? mean / static_cast<double>(priced) : std::max(cost_, 1.0) / std::max(usage_.limit(), 1.0);
  for (int i = 0; i < trees && tree_.highest() > usage_.limit(); ++i) {
    prices_[tree_.highest_at()] += mean * 0.2;
    if (i % 8 == 0) set_prices(std::vector<double>(prices_));
    const double highest = tree_.highest();
    const auto before = move_tree(random_variable(), 60, 1);
    if (tree_.highest() <= highest) continue;
    for (const auto& [v, state] : before) set(v, state);
  }
  set_prices(kept);
  const size_t steps = std::min<size_t>(variables_.size(), 2000);
  for (size_t i = 0; i < steps && tree_.highest() > usage_.limit(); ++i) {
    if (!lower_highest()) break;
  }
  cost_ = model_.cost(states_);
  return is_feasible();
}

}  // namespace shadowgraph
