// Bucket elimination: the minimum of a sum of tables over choices, or a bound on it.
#include "sharding/solver/minimum.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <vector>

#include "sharding/solver/dual.h"

namespace shadowgraph {
namespace {

// The cost of forbidden entries; sums of a few thousand do not overflow.
constexpr int64_t kImpossible = int64_t{1} << 59;

// Costs over some variables; the last variable varies fastest.
struct CostTable {
  std::vector<uint32_t> variables;  // ascending
  std::vector<int64_t> costs;       // >= 0, clamped to kImpossible
};

struct Elimination {
  int64_t minimum = 0;           // of the sum, or a lower bound
  bool exact = true;             // no table was split
  std::vector<uint32_t> choice;  // by variable: attains the minimum if exact
};

int64_t entries(std::span<const uint32_t> domains, std::span<const uint32_t> variables) {
  int64_t count = 1;
  for (const uint32_t v : variables) {
    if (count > (int64_t{1} << 40)) return count;
    count *= domains[v];
  }
  return count;
}

// Returns `table` with `last` as its last variable, so that its costs are contiguous.
CostTable with_last(const CostTable& table, uint32_t last, std::span<const uint32_t> domains) {
  if (table.variables.back() == last) return table;
  CostTable moved;
  const size_t at = std::find(table.variables.begin(), table.variables.end(), last) - table.variables.begin();
  int64_t inner = 1;
  for (size_t i = at + 1; i < table.variables.size(); ++i) inner *= domains[table.variables[i]];
  const int64_t size = domains[last];
  const int64_t outer = static_cast<int64_t>(table.costs.size()) / (inner * size);
  moved.variables = table.variables;
  moved.variables.erase(moved.variables.begin() + static_cast<int64_t>(at));
  moved.variables.push_back(last);
  moved.costs.resize(table.costs.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t s = 0; s < size; ++s) {
      for (int64_t i = 0; i < inner; ++i) {
        moved.costs[(o * inner + i) * size + s] = table.costs[(o * size + s) * inner + i];
      }
    }
  }
  return moved;
}

// A bucket after minimizing over its variable.
struct Minimized {
  CostTable table;
  std::vector<uint32_t> best;  // minimizing state, by entry
};

Minimized minimize(std::span<const uint32_t> domains, uint32_t variable, std::span<const CostTable* const> bucket) {
  std::set<uint32_t> scope;
  for (const CostTable* table : bucket) scope.insert(table->variables.begin(), table->variables.end());
  scope.erase(variable);
  Minimized made{.table = {.variables = {scope.begin(), scope.end()}}};
  const std::vector<uint32_t>& others = made.table.variables;
  const size_t size = domains[variable];
  std::vector<CostTable> tables;
  std::vector<std::vector<int64_t>> strides;
  for (const CostTable* table : bucket) {
    tables.push_back(with_last(*table, variable, domains));
    std::vector<int64_t> stride(others.size(), 0);
    int64_t apart = static_cast<int64_t>(size);
    for (size_t i = tables.back().variables.size() - 1; i-- > 0;) {
      const uint32_t v = tables.back().variables[i];
      stride[std::lower_bound(others.begin(), others.end(), v) - others.begin()] = apart;
      apart *= domains[v];
    }
    strides.push_back(std::move(stride));
  }
  const int64_t count = entries(domains, others);
  made.table.costs.resize(count);
  made.best.resize(count);
  std::vector<uint32_t> at(others.size(), 0);
  std::vector<int64_t> offset(tables.size(), 0);
  std::vector<int64_t> sum(size);
  for (int64_t entry = 0; entry < count; ++entry) {
    std::copy_n(tables[0].costs.data() + offset[0], size, sum.data());
    for (size_t t = 1; t < tables.size(); ++t) {
      const int64_t* row = tables[t].costs.data() + offset[t];
      for (size_t s = 0; s < size; ++s) sum[s] += row[s];
    }
    const size_t best = std::min_element(sum.begin(), sum.end()) - sum.begin();
    made.table.costs[entry] = std::min(sum[best], kImpossible);
    made.best[entry] = static_cast<uint32_t>(best);
    for (size_t i = others.size(); i-- > 0;) {
      ++at[i];
      for (size_t t = 0; t < tables.size(); ++t) offset[t] += strides[t][i];
      if (at[i] < domains[others[i]]) break;
      for (size_t t = 0; t < tables.size(); ++t) offset[t] -= strides[t][i] * domains[others[i]];
      at[i] = 0;
    }
  }
  return made;
}

// Groups the tables of a bucket by first fit, largest first; the combined scope of a group stays within the limit.
std::vector<std::vector<size_t>> grouped(std::span<const uint32_t> domains, const std::vector<CostTable>& bucket,
                                         int64_t limit) {
  std::vector<size_t> order(bucket.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return bucket[a].costs.size() > bucket[b].costs.size(); });
  std::vector<std::vector<size_t>> groups;
  std::vector<std::set<uint32_t>> scopes;
  for (const size_t i : order) {
    std::set<uint32_t> scope;
    size_t g = 0;
    for (; g < groups.size(); ++g) {
      scope = scopes[g];
      scope.insert(bucket[i].variables.begin(), bucket[i].variables.end());
      if (entries(domains, std::vector(scope.begin(), scope.end())) <= limit) break;
    }
    if (g == groups.size()) {
      groups.emplace_back();
      scope = {bucket[i].variables.begin(), bucket[i].variables.end()};
      scopes.emplace_back();
    }
    groups[g].push_back(i);
    scopes[g] = std::move(scope);
  }
  return groups;
}

// Returns a greedy order that keeps tables small: always the variable with the smallest resulting table.
std::vector<uint32_t> elimination_order(std::span<const uint32_t> domains, std::span<const CostTable> tables) {
  const size_t count = domains.size();
  std::vector<std::set<uint32_t>> neighbors(count);
  std::vector<double> current(count);  // sum over the neighbors, updated with them: a hub may have very many
  const auto bits = [&](uint32_t v) { return std::log2(static_cast<double>(domains[v])); };
  const auto connect = [&](std::span<const uint32_t> variables) {
    for (const uint32_t a : variables) {
      for (const uint32_t b : variables) {
        if (a != b && neighbors[a].insert(b).second) current[a] += bits(b);
      }
    }
  };
  for (const CostTable& table : tables) connect(table.variables);
  using Entry = std::pair<double, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<bool> done(count, false);
  for (uint32_t v = 0; v < count; ++v) queue.emplace(current[v], v);
  std::vector<uint32_t> order;
  while (!queue.empty()) {
    const auto [key, v] = queue.top();
    queue.pop();
    if (done[v] || key != current[v]) continue;
    done[v] = true;
    order.push_back(v);
    const std::vector<uint32_t> around(neighbors[v].begin(), neighbors[v].end());
    for (const uint32_t a : around) current[a] -= static_cast<double>(neighbors[a].erase(v)) * bits(v);
    connect(around);
    for (const uint32_t a : around) queue.emplace(current[a], a);
  }
  return order;
}

// `order` lists each variable once. Tables that would have more than `limit` entries are split (mini-buckets).
Elimination eliminate(std::span<const uint32_t> domains, std::vector<CostTable> tables, std::span<const uint32_t> order,
                      int64_t limit) {
  Elimination result;
  result.choice.assign(domains.size(), 0);
  std::vector<uint32_t> place(domains.size());
  for (uint32_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<std::vector<CostTable>> buckets(domains.size());
  const auto put = [&](CostTable table) {
    if (table.variables.empty()) {
      result.minimum = std::min(result.minimum + table.costs[0], kImpossible);
      return;
    }
    const uint32_t first = std::ranges::min(table.variables, {}, [&](uint32_t v) { return place[v]; });
    buckets[first].push_back(std::move(table));
  };
  for (CostTable& table : tables) put(std::move(table));
  // The tables determine each variable's choice given the others. On the way back, split buckets are evaluated whole.
  std::vector<std::optional<Minimized>> solved(domains.size());
  for (const uint32_t v : order) {
    const std::vector<std::vector<size_t>> groups = grouped(domains, buckets[v], limit);
    for (const std::vector<size_t>& group : groups) {
      std::vector<const CostTable*> bucket;
      for (const size_t i : group) bucket.push_back(&buckets[v][i]);
      Minimized made = minimize(domains, v, bucket);
      put(made.table);
      if (groups.size() == 1) solved[v] = std::move(made);
    }
    if (groups.size() == 1) buckets[v].clear();
    if (groups.size() > 1) result.exact = false;
  }
  // All other variables of a variable's tables have been chosen before it.
  const auto entry_of = [&](const CostTable& table) {
    int64_t entry = 0;
    for (const uint32_t v : table.variables) entry = entry * domains[v] + result.choice[v];
    return entry;
  };
  for (size_t i = order.size(); i-- > 0;) {
    const uint32_t v = order[i];
    if (solved[v]) {
      result.choice[v] = solved[v]->best[entry_of(solved[v]->table)];
      continue;
    }
    std::vector<int64_t> sums;  // by state
    for (uint32_t s = 0; s < domains[v]; ++s) {
      result.choice[v] = s;
      int64_t& sum = sums.emplace_back(0);
      for (const CostTable& table : buckets[v]) sum = std::min(sum + table.costs[entry_of(table)], kImpossible);
    }
    result.choice[v] = static_cast<uint32_t>(std::ranges::min_element(sums) - sums.begin());
  }
  return result;
}

constexpr double kEasyWidth = 18;  // log2 of the steps of an elimination that is done right away
constexpr double kMaxWork = 30;    // log2 of the maximum steps, if tables may not be split

class MinimumSearch {
 public:
  MinimumSearch(PairwiseModel model, const MinimumOptions& options) : model_(std::move(model)), options_(options) {}

  Minimum run() {
    best_.bound = -kInfinite;
    simplify();
    if (!model_.is_possible()) {
      best_.possible = false;
      best_.impossible_node = model_.impossible_node();
      return best_;
    }
    while (!done_) {
      if (model_.width().total <= kEasyWidth || !ascend()) eliminate_all();
    }
    best_.bound = std::min(best_.bound, cutoff());
    return best_;
  }

 private:
  double cutoff() const { return std::min(options_.cutoff, best_.cost); }

  void simplify() {
    model_.propagate();
    for (int round = 0; round < 4 && model_.is_possible(); ++round) {
      const bool merged = model_.merge_functional();
      const bool dropped = model_.drop_dominated(8);
      if (!merged && !dropped) break;
      model_.propagate();
    }
  }

  void take(const std::vector<uint32_t>& states) {
    const double cost = model_.cost(states);
    if (cost >= cutoff()) return;
    best_.cost = cost;
    best_.choice = model_.choice(states);
  }

  bool is_good_enough() const {
    const double highest = cutoff();
    return best_.bound >= highest - 0.5 || (highest < kInfinite && highest - best_.bound <= options_.gap * highest);
  }

  // Ends the search over the remaining states: none is below the cutoff.
  void close() {
    best_.bound = std::max(best_.bound, cutoff());
    done_ = true;
  }

  // Runs passes of the dual ascent until enough states are eliminated to restart with a smaller model. Returns false if
  // it stalls.
  bool ascend() {
    DualAscent dual(model_);
    int64_t states = 0;
    for (uint32_t v = 0; v < model_.size(); ++v) states += model_.states(v);
    double before = dual.bound();
    int since = 0;
    bool goes_on = true;
    while (!done_ && goes_on) {
      dual.pass(cutoff());
      ++best_.passes;
      ++since;
      if (!dual.is_exact()) return false;
      best_.bound = std::max(best_.bound, dual.bound());
      if (since % 5 == 0) {
        std::vector<uint32_t> rounded = dual.rounded();
        if (model_.cost(rounded) < kInfinite) descend(model_, rounded);
        take(rounded);
      }
      if (is_good_enough() || best_.passes >= options_.passes || (options_.out_of_time && options_.out_of_time())) {
        done_ = true;
      }
      if (since % 50 == 0) {
        const double left = cutoff() - dual.bound();
        if (dual.bound() - before < left * 1e-3) goes_on = false;
        before = dual.bound();
        if (dual.gone_count() * 2 > states) break;
      }
    }
    if (done_ && is_good_enough()) return true;
    dual.apply(model_);
    model_.propagate();
    if (model_.is_possible()) simplify();
    if (!model_.is_possible()) {
      close();
      return true;
    }
    if (done_ && model_.width().largest <= most_bits()) done_ = goes_on = false;
    return goes_on;
  }

  double most_bits() const { return std::log2(static_cast<double>(options_.table_limit)); }

  void eliminate_all() {
    done_ = true;
    if (!options_.split) {
      const PairwiseModel::Width width = model_.width();
      if (width.total > kMaxWork || width.largest > most_bits()) return;
    }
    std::vector<uint32_t> of(model_.size(), 0);
    std::vector<uint32_t> variables;
    std::vector<uint32_t> domains;
    std::vector<CostTable> tables;
    double constant = 0;
    const auto add = [&](std::vector<uint32_t> scope, const std::vector<double>& costs) {
      const double least = *std::min_element(costs.begin(), costs.end());
      constant += least;
      CostTable table{.variables = std::move(scope), .costs = {}};
      table.costs.reserve(costs.size());
      for (const double cost : costs) {
        const double more = cost - least;
        table.costs.push_back(more >= static_cast<double>(kImpossible) ? kImpossible : std::llround(more));
      }
      tables.push_back(std::move(table));
    };
    for (uint32_t v = 0; v < model_.size(); ++v) {
      if (!model_.is_left(v)) continue;
      of[v] = static_cast<uint32_t>(variables.size());
      variables.push_back(v);
      domains.push_back(model_.states(v));
      add({of[v]}, model_.unary(v));
    }
    for (const PairwiseModel::Edge& edge : model_.edges()) {
      if (!edge.table) continue;
      const bool in_order = of[edge.a] < of[edge.b];
      add(in_order ? std::vector{of[edge.a], of[edge.b]} : std::vector{of[edge.b], of[edge.a]},
          in_order ? edge.table->costs : edge.table->transposed);
    }
    const std::vector<uint32_t> order = elimination_order(domains, tables);
    const Elimination found = eliminate(domains, std::move(tables), order, options_.table_limit);
    const bool impossible = found.minimum >= kImpossible;
    if (!impossible) {
      std::vector<uint32_t> states(model_.size(), 0);
      for (uint32_t i = 0; i < variables.size(); ++i) states[variables[i]] = found.choice[i];
      if (!found.exact && model_.cost(states) < kInfinite) descend(model_, states);
      take(states);
      best_.bound = std::max(best_.bound, std::min(constant + static_cast<double>(found.minimum), cutoff()));
    } else if (best_.choice.empty() && options_.cutoff == kInfinite) {
      best_.possible = false;
      best_.impossible_node = kNoNode;
    } else {
      close();
    }
  }

  PairwiseModel model_;
  const MinimumOptions& options_;
  Minimum best_;
  bool done_ = false;
};

}  // namespace

Minimum minimum_of(PairwiseModel model, const MinimumOptions& options) {
  return MinimumSearch(std::move(model), options).run();
}

void descend(const PairwiseModel& model, std::vector<uint32_t>& states) {
  std::vector<double> sum;
  for (int round = 0; round < 20; ++round) {
    bool changed = false;
    for (uint32_t v = 0; v < model.size(); ++v) {
      if (!model.is_left(v)) continue;
      sum = model.unary(v);
      for (const uint32_t e : model.edges_of(v)) {
        const uint32_t other = model.edges()[e].other(v);
        const double* row = model.edges()[e].row(other, states[other]);
        for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
      }
      const auto best = static_cast<uint32_t>(std::min_element(sum.begin(), sum.end()) - sum.begin());
      if (sum[best] >= sum[states[v]]) continue;
      states[v] = best;
      changed = true;
    }
    if (!changed) break;
  }
}

}  // namespace shadowgraph
