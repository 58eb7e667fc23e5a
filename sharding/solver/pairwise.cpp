#include "sharding/solver/pairwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <iterator>
#include <numeric>
#include <queue>
#include <set>
#include <span>
#include <tuple>

#include "sharding/solver/usage.h"

namespace shadowgraph {
namespace {

AllowedPairs allowed_pairs(const std::vector<double>& costs, uint32_t columns) {
  AllowedPairs pairs{.begin = {0}, .column = {}, .cost = {}};
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i] != kInfinite) {
      pairs.column.push_back(static_cast<uint32_t>(i % columns));
      pairs.cost.push_back(costs[i]);
    }
    if ((i + 1) % columns == 0) pairs.begin.push_back(static_cast<uint32_t>(pairs.column.size()));
  }
  return pairs;
}

using Wide = AssignmentCost::Wide;

constexpr double kMostCost = 0x1p45;

// Returns the smallest cost, times its multiplicity, that alone exceeds the total of every choice without costs that
// large; kForbidden if there is none.
int64_t cost_above_all(const AssignmentProblem& problem) {
  // By bit length: the sum of the largest such cost of each node and edge, and the smallest longer cost.
  constexpr size_t kBits = 64;
  std::array<Wide, kBits> largest_total{};
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
      largest_total[bits] += static_cast<Wide>(most);
    }
  };
  for (const AssignmentNode& node : problem.nodes) look(node.costs, node.times);
  for (const AssignmentEdge& edge : problem.edges) look(problem.matrices[edge.matrix].costs, edge.times);
  int64_t above = kForbidden;
  for (size_t bits = kBits - 1; bits-- > 0;) {
    above = std::min(above, least[bits + 1]);
    if (above != kForbidden && Wide{above} > largest_total[bits]) return above;
  }
  return kForbidden;
}

constexpr int kDominanceTries = 24;  // candidate states to compare others with

// Compares usages with every state of the other ends that `state` is compatible with.
bool uses_no_more(const PairwiseModel& model, const UsageModel& usage, uint32_t v, uint32_t better, uint32_t state) {
  for (const uint32_t e : model.edges_of(v)) {
    const PairwiseModel::Edge& edge = model.edges()[e];
    for (const UsageItem& item : usage.pairs(e)) {
      // The other end has lost states since the usages were computed.
      if (item.bytes.size() != edge.table->costs.size()) return false;
      for (uint32_t t = 0; t < model.states(edge.other(v)); ++t) {
        const size_t at = edge.at(v, state, t);
        if (edge.table->costs[at] != kInfinite && item.bytes[edge.at(v, better, t)] > item.bytes[at]) return false;
      }
    }
  }
  return true;
}

// Drops states that exceed the limit even if all other variables use their minimum, and propagates.
bool drop_too_large(const AssignmentProblem& problem, PairwiseModel& model) {
  for (int round = 0; round < 8; ++round) {
    const UsageModel usage(problem, model);
    UsageTree least(usage.points());
    std::vector<std::vector<double>> needs(model.size());
    for (uint32_t v = 0; v < model.size(); ++v) {
      for (const UsageItem& item : usage.items(v)) {
        needs[v].push_back(*std::min_element(item.bytes.begin(), item.bytes.end()));
        least.add(item.begin, item.end, needs[v].back());
      }
    }
    std::vector<std::vector<double>> pair_needs(model.edges().size());
    for (uint32_t e = 0; e < pair_needs.size(); ++e) {
      for (const UsageItem& item : usage.pairs(e)) {
        double need = kInfinite;
        for (size_t i = 0; i < item.bytes.size(); ++i) {
          if (model.edges()[e].table->costs[i] != kInfinite) need = std::min(need, item.bytes[i]);
        }
        pair_needs[e].push_back(need);
        least.add(item.begin, item.end, need);
      }
    }
    if (least.highest() > usage.limit()) return false;
    bool changed = false;
    for (uint32_t v = 0; v < model.size(); ++v) {
      if (!model.is_left(v)) continue;
      std::vector<bool> gone(model.states(v), false);
      for (size_t i = 0; i < needs[v].size(); ++i) {
        const UsageItem& item = usage.items(v)[i];
        const double room = usage.limit() - least.highest(item.begin, item.end) + needs[v][i];
        for (size_t s = 0; s < gone.size(); ++s) gone[s] = gone[s] || item.bytes[s] > room;
      }
      for (const uint32_t e : model.edges_of(v)) {
        const PairwiseModel::Edge& edge = model.edges()[e];
        for (size_t k = 0; k < pair_needs[e].size(); ++k) {
          // `usage` predates the states dropped here. Edges whose ends have lost some are skipped.
          const UsageItem& item = usage.pairs(e)[k];
          if (item.bytes.size() != edge.table->costs.size()) continue;
          const double room = usage.limit() - least.highest(item.begin, item.end) + pair_needs[e][k];
          for (uint32_t s = 0; s < gone.size(); ++s) {
            bool fits = false;
            for (uint32_t t = 0; t < model.states(edge.other(v)) && !fits; ++t) {
              const size_t at = edge.at(v, s, t);
              fits = edge.table->costs[at] != kInfinite && item.bytes[at] <= room;
            }
            gone[s] = gone[s] || !fits;
          }
        }
      }
      changed |= model.drop(v, gone);
    }
    if (!model.is_possible()) return false;
    if (!changed) break;
    model.propagate();
    if (!model.is_possible()) return false;
  }
  return true;
}

}  // namespace

bool simplify(const AssignmentProblem& problem, PairwiseModel& model, bool within_limit) {
  for (int round = 0; round < 4; ++round) {
    model.propagate();
    if (!model.is_possible()) return false;
    model.merge_functional();
    if (within_limit && !drop_too_large(problem, model)) return false;
    const UsageModel usage(problem, model);
    const bool dropped = model.drop_dominated(kDominanceTries, [&](uint32_t v, uint32_t better, uint32_t state) {
      const auto no_more = [&](const UsageItem& item) { return item.bytes[better] <= item.bytes[state]; };
      return std::ranges::all_of(usage.items(v), no_more) && uses_no_more(model, usage, v, better, state);
    });
    if (!dropped) break;
  }
  return true;
}

std::shared_ptr<const PairTable> completed(PairTable table) {
  table.transposed.resize(table.costs.size());
  for (uint32_t i = 0; i < table.rows; ++i) {
    for (uint32_t j = 0; j < table.columns; ++j) {
      table.transposed[size_t{j} * table.rows + i] = table.costs[size_t{i} * table.columns + j];
    }
  }
  table.allowed = table.allowed_transposed = {};
  const auto finite = std::count_if(table.costs.begin(), table.costs.end(), [](double x) { return x != kInfinite; });
  if (static_cast<size_t>(finite) * 4 <= table.costs.size()) {
    table.allowed = allowed_pairs(table.costs, table.columns);
    table.allowed_transposed = allowed_pairs(table.transposed, table.rows);
  }
  return std::make_shared<const PairTable>(std::move(table));
}

PairwiseModel::PairwiseModel(std::vector<std::vector<double>> unary)
    : unary_(std::move(unary)),
      left_(unary_.size(), true),
      edges_of_(unary_.size()),
      members_(unary_.size()),
      nodes_(unary_.size()) {
  for (uint32_t v = 0; v < unary_.size(); ++v) {
    Member member{.node = v, .strategy = std::vector<uint32_t>(unary_[v].size())};
    std::iota(member.strategy.begin(), member.strategy.end(), 0);
    members_[v].push_back(std::move(member));
  }
}

void PairwiseModel::add_edge(uint32_t a, uint32_t b, PairTable table) {
  if (a == b) {
    for (uint32_t s = 0; s < states(a); ++s) unary_[a][s] += table.at(s, s);
    return;
  }
  for (const uint32_t e : edges_of_[a]) {
    if (edges_[e].other(a) != b) continue;
    PairTable sum = *edges_[e].table;
    for (uint32_t i = 0; i < table.rows; ++i) {
      for (uint32_t j = 0; j < table.columns; ++j) sum.costs[edges_[e].at(a, i, j)] += table.at(i, j);
    }
    edges_[e].table = completed(std::move(sum));
    return;
  }
  edges_of_[a].push_back(static_cast<uint32_t>(edges_.size()));
  edges_of_[b].push_back(static_cast<uint32_t>(edges_.size()));
  edges_.push_back({.a = a, .b = b, .table = completed(std::move(table))});
}

int64_t PairwiseModel::entries() const {
  int64_t count = 0;
  for (const Edge& edge : edges_) count += edge.table ? static_cast<int64_t>(edge.table->costs.size()) : 0;
  return count;
}

void PairwiseModel::drop_edge(uint32_t e) {
  std::erase(edges_of_[edges_[e].a], e);
  std::erase(edges_of_[edges_[e].b], e);
  edges_[e].table.reset();
}

bool PairwiseModel::drop(uint32_t v, const std::vector<bool>& gone) {
  std::vector<uint32_t> keep;
  for (uint32_t s = 0; s < gone.size(); ++s) {
    if (!gone[s]) keep.push_back(s);
  }
  if (keep.size() == gone.size()) return false;
  const auto picked = [&](auto& of) {
    for (size_t i = 0; i < keep.size(); ++i) of[i] = of[keep[i]];
    of.resize(keep.size());
  };
  picked(unary_[v]);
  for (Member& member : members_[v]) picked(member.strategy);
  for (const uint32_t e : edges_of_[v]) {
    Edge& edge = edges_[e];
    PairTable table{.rows = edge.table->rows, .columns = edge.table->columns};
    (edge.a == v ? table.rows : table.columns) = static_cast<uint32_t>(keep.size());
    table.costs.reserve(size_t{table.rows} * table.columns);
    for (uint32_t i = 0; i < table.rows; ++i) {
      for (uint32_t j = 0; j < table.columns; ++j) {
        table.costs.push_back(edge.a == v ? edge.table->at(keep[i], j) : edge.table->at(i, keep[j]));
      }
    }
    edge.table = completed(std::move(table));
  }
  if (keep.empty() && possible_) {
    possible_ = false;
    impossible_node_ = members_[v][0].node;
  }
  return true;
}

void PairwiseModel::propagate() {
  // Eliminated states are only marked; tables are reduced once at the end.
  std::vector<std::vector<bool>> gone(size());
  std::deque<uint32_t> queue;
  std::vector<bool> queued(size(), false);
  for (uint32_t v = 0; v < size(); ++v) {
    if (!left_[v]) continue;
    gone[v].resize(states(v), false);
    for (uint32_t s = 0; s < states(v); ++s) gone[v][s] = unary_[v][s] == kInfinite;
    queue.push_back(v);
    queued[v] = true;
  }
  while (!queue.empty()) {
    const uint32_t v = queue.front();
    queue.pop_front();
    queued[v] = false;
    for (const uint32_t e : edges_of_[v]) {
      const uint32_t u = edges_[e].other(v);
      bool changed = false;
      for (uint32_t s = 0; s < states(u); ++s) {
        if (gone[u][s]) continue;
        const double* row = edges_[e].row(u, s);
        bool supported = false;
        for (uint32_t t = 0; t < states(v) && !supported; ++t) supported = !gone[v][t] && row[t] != kInfinite;
        if (supported) continue;
        gone[u][s] = true;
        changed = true;
      }
      if (changed && !queued[u]) {
        queue.push_back(u);
        queued[u] = true;
      }
    }
  }
  for (uint32_t v = 0; v < size(); ++v) drop(v, gone[v]);
}

void PairwiseModel::merge(uint32_t from, uint32_t into, const std::vector<uint32_t>& state_of) {
  const uint32_t count = states(into);
  for (uint32_t s = 0; s < count; ++s) unary_[into][s] += unary_[from][state_of[s]];
  const std::vector<uint32_t> edges = edges_of_[from];
  for (const uint32_t e : edges) {
    const Edge edge = edges_[e];
    drop_edge(e);
    const uint32_t other = edge.other(from);
    if (other == into) {
      for (uint32_t s = 0; s < count; ++s) unary_[into][s] += edge.row(from, state_of[s])[s];
      continue;
    }
    PairTable table{.rows = count, .columns = states(other)};
    table.costs.reserve(size_t{count} * table.columns);
    for (uint32_t s = 0; s < count; ++s) {
      const double* row = edge.row(from, state_of[s]);
      table.costs.insert(table.costs.end(), row, row + table.columns);
    }
    add_edge(into, other, std::move(table));
  }
  for (Member& member : members_[from]) {
    Member moved{.node = member.node};
    for (uint32_t s = 0; s < count; ++s) moved.strategy.push_back(member.strategy[state_of[s]]);
    members_[into].push_back(std::move(moved));
  }
  members_[from].clear();
  left_[from] = false;
  unary_[from].clear();
}

bool PairwiseModel::merge_functional() {
  bool any = false;
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t e = 0; e < edges_.size(); ++e) {
      if (!edges_[e].table) continue;
      for (const uint32_t into : {edges_[e].a, edges_[e].b}) {
        const uint32_t from = edges_[e].other(into);
        // Merging expands the tables of the merged variable's other edges to the other's states.
        if (states(into) > 2 * states(from) + 8 && edges_of_[from].size() > 1) continue;
        std::vector<uint32_t> state_of;
        bool functional = true;
        for (uint32_t s = 0; s < states(into) && functional; ++s) {
          const double* row = edges_[e].row(into, s);
          uint32_t found = 0;
          for (uint32_t t = 0; t < states(from) && found < 2; ++t) {
            if (row[t] == kInfinite) continue;
            if (found++ == 0) state_of.push_back(t);
          }
          functional = found == 1;
        }
        if (!functional) continue;
        merge(from, into, state_of);
        changed = any = true;
        break;
      }
    }
  }
  return any;
}

bool PairwiseModel::drop_dominated(uint32_t candidates, const MayReplace& may) {
  bool any = false;
  for (uint32_t v = 0; v < size(); ++v) {
    if (!left_[v] || states(v) < 2) continue;
    const uint32_t count = states(v);
    // Compute each state's lower bound given its neighbors' best states; try the cheapest as dominating states.
    std::vector<double> least = unary_[v];
    for (const uint32_t e : edges_of_[v]) {
      const uint32_t others = states(edges_[e].other(v));
      for (uint32_t s = 0; s < count; ++s) {
        const double* row = edges_[e].row(v, s);
        double mean = 0;
        for (uint32_t t = 0; t < others; ++t) mean += row[t] == kInfinite ? 0 : row[t];
        least[s] += mean / others;
      }
    }
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](uint32_t x, uint32_t y) { return std::tie(least[x], x) < std::tie(least[y], y); });
    std::vector<bool> gone(count, false);
    for (uint32_t k = 0; k < std::min(candidates, count); ++k) {
      const uint32_t better = order[k];
      if (gone[better]) continue;
      for (uint32_t s = 0; s < count; ++s) {
        if (gone[s] || s == better) continue;
        double saved = unary_[v][s] - unary_[v][better];
        if (may && !may(v, better, s)) continue;
        for (const uint32_t e : edges_of_[v]) {
          const uint32_t others = states(edges_[e].other(v));
          const double* row = edges_[e].row(v, s);
          const double* best = edges_[e].row(v, better);
          double smallest = kInfinite;
          for (uint32_t t = 0; t < others; ++t) {
            if (row[t] != kInfinite) smallest = std::min(smallest, row[t] - best[t]);
          }
          saved += smallest;
          if (saved == -kInfinite) break;
        }
        if (saved >= 0) gone[s] = true;
      }
    }
    any |= drop(v, gone);
  }
  return any;
}

void PairwiseModel::reparametrize(std::vector<std::vector<double>> unary,
                                  const std::vector<std::vector<double>>& from_edges) {
  unary_ = std::move(unary);
  for (uint32_t e = 0; e < edges_.size(); ++e) {
    if (!edges_[e].table) continue;
    PairTable table = *edges_[e].table;
    const std::vector<double>& of_a = from_edges[2 * e];
    const std::vector<double>& of_b = from_edges[2 * e + 1];
    for (uint32_t i = 0; i < table.rows; ++i) {
      for (uint32_t j = 0; j < table.columns; ++j) table.costs[size_t{i} * table.columns + j] -= of_a[i] + of_b[j];
    }
    edges_[e].table = completed(std::move(table));
  }
}

PairwiseModel::Width PairwiseModel::width() const {
  std::vector<std::set<uint32_t>> around(size());
  std::vector<double> weight(size(), 0);  // updated with the neighbors: a hub may have very many
  using Entry = std::pair<double, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto log_states = [&](uint32_t v) { return std::log2(static_cast<double>(std::max<uint32_t>(states(v), 1))); };
  const auto connect = [&](uint32_t v, uint32_t u) {
    if (around[v].insert(u).second) weight[v] += log_states(u);
  };
  for (uint32_t v = 0; v < size(); ++v) {
    if (!left_[v]) continue;
    weight[v] = log_states(v);
    for (const uint32_t e : edges_of_[v]) connect(v, edges_[e].other(v));
    queue.emplace(weight[v], v);
  }
  std::vector<bool> done(size(), false);
  Width width;
  double total = 0;
  while (!queue.empty()) {
    const auto [key, v] = queue.top();
    queue.pop();
    if (done[v] || key != weight[v]) continue;
    done[v] = true;
    width.largest = std::max(width.largest, key - log_states(v));
    total += std::exp2(key);
    if (key > 48) break;  // too large in any case
    for (const uint32_t u : around[v]) {
      weight[u] -= static_cast<double>(around[u].erase(v)) * log_states(v);
      for (const uint32_t w : around[v]) {
        if (w != u) connect(u, w);
      }
      queue.emplace(weight[u], u);
    }
  }
  width.total = std::log2(std::max(total, 1.0));
  return width;
}

std::vector<uint32_t> PairwiseModel::choice(std::span<const uint32_t> states) const {
  std::vector<uint32_t> choice(nodes_, 0);
  for (uint32_t v = 0; v < size(); ++v) {
    for (const Member& member : members_[v]) choice[member.node] = member.strategy[states[v]];
  }
  return choice;
}

std::vector<uint32_t> PairwiseModel::states_of(std::span<const uint32_t> choice) const {
  std::vector<uint32_t> states(size(), 0);
  for (uint32_t v = 0; v < size(); ++v) {
    if (!left_[v]) continue;
    uint32_t s = 0;
    const auto fits = [&](const Member& member) { return member.strategy[s] == choice[member.node]; };
    while (s < unary_[v].size() && !std::all_of(members_[v].begin(), members_[v].end(), fits)) ++s;
    if (s == unary_[v].size()) return {};
    states[v] = s;
  }
  return states;
}

double PairwiseModel::cost(std::span<const uint32_t> states) const {
  double sum = 0;
  for (uint32_t v = 0; v < size(); ++v) {
    if (left_[v]) sum += unary_[v][states[v]];
  }
  for (const Edge& edge : edges_) {
    if (edge.table) sum += edge.table->at(states[edge.a], states[edge.b]);
  }
  return sum;
}

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
