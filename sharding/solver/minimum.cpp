#include "sharding/solver/minimum.h"

#include <algorithm>
#include <cmath>

#include "sharding/solver/dual.h"
#include "sharding/solver/elimination.h"

namespace shadowgraph {

namespace {

constexpr double kEasyWidth = 18;  // log2 of the steps of an elimination that is done at once
constexpr double kMostWork = 30;   // of one that is done at all, where tables may not be split

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
      if (model_.width().total <= kEasyWidth) {
        eliminate_all(options_.table_limit);
        break;
      }
      if (!ascend()) {
        eliminate_all(options_.table_limit);
        break;
      }
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

  // Closes the search over what states remain: nothing is left that is below the cutoff.
  void close() {
    best_.bound = std::max(best_.bound, cutoff());
    done_ = true;
  }

  // Makes passes of the dual ascent until enough states are gone to start again with less. Returns false if it gets
  // stuck.
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
    if (done_ && model_.width().largest <= std::log2(static_cast<double>(options_.table_limit)))
      done_ = goes_on = false;
    return goes_on;
  }

  void eliminate_all(int64_t table_limit) {
    if (!options_.split) {
      const PairwiseModel::Width width = model_.width();
      if (width.total > kMostWork || width.largest > std::log2(static_cast<double>(table_limit))) {
        done_ = true;
        return;
      }
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
      if (of[edge.a] < of[edge.b]) {
        add({of[edge.a], of[edge.b]}, edge.table->costs);
      } else {
        add({of[edge.b], of[edge.a]}, edge.table->transposed);
      }
    }
    const std::vector<uint32_t> order = elimination_order(domains, tables);
    const Elimination found = eliminate(domains, std::move(tables), order, table_limit);
    best_.largest_table = std::max(best_.largest_table, found.largest);
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
    done_ = true;
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
        const PairwiseModel::Edge& edge = model.edges()[e];
        const bool first = edge.a == v;
        const double* row = first ? edge.table->transposed.data() : edge.table->costs.data();
        row += size_t{states[first ? edge.b : edge.a]} * sum.size();
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
