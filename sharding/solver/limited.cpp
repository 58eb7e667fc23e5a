#include "sharding/solver/limited.h"

#include <algorithm>
#include <cmath>

#include "sharding/solver/dual.h"
#include "sharding/solver/local_search.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

namespace {

class LimitSearch {
 public:
  LimitSearch(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options)
      : problem_(problem), options_(options), model_(std::move(model)), best_(options.best) {}

  Limited run() {
    result_.bound = options_.bound;
    model_.propagate();
    if (model_.is_possible()) model_.merge_functional();
    if (!model_.is_possible() || !drop_too_large()) {
      result_.possible = false;
      return result_;
    }
    const UsageModel usage(problem_, model_);
    LocalSearch local(model_, usage, 1);
    for (const std::vector<uint32_t>& start : options_.starts) {
      const std::vector<uint32_t> states = model_.states_of(start);
      if (!states.empty()) attempt(local, states, 40);
    }
    price(usage, local);
    return result_;
  }

 private:
  bool is_over() const {
    return (best_ < kInfinite && best_ - result_.bound <= std::max(options_.gap * best_, 0.5)) ||
           options_.out_of_time();
  }

  // States that use more than is left by the least that all others need, with what then follows.
  bool drop_too_large() {
    for (int round = 0; round < 8; ++round) {
      const UsageModel usage(problem_, model_);
      UsageTree least(usage.points());
      std::vector<std::vector<double>> needs(model_.size());
      for (uint32_t v = 0; v < model_.size(); ++v) {
        for (const UsageItem& item : usage.items(v)) {
          needs[v].push_back(*std::min_element(item.bytes.begin(), item.bytes.end()));
          least.add(item.begin, item.end, needs[v].back());
        }
      }
      if (least.highest() > usage.limit()) return false;
      bool changed = false;
      for (uint32_t v = 0; v < model_.size(); ++v) {
        if (!model_.is_left(v)) continue;
        std::vector<bool> gone(model_.states(v), false);
        for (size_t i = 0; i < needs[v].size(); ++i) {
          const UsageItem& item = usage.items(v)[i];
          const double room = usage.limit() - least.highest(item.begin, item.end) + needs[v][i];
          for (size_t s = 0; s < gone.size(); ++s) gone[s] = gone[s] || item.bytes[s] > room;
        }
        std::vector<uint32_t> keep;
        for (uint32_t s = 0; s < gone.size(); ++s) {
          if (!gone[s]) keep.push_back(s);
        }
        changed |= keep.size() < gone.size();
        model_.restrict_to(v, keep);
      }
      if (!model_.is_possible()) return false;
      if (!changed) break;
      model_.propagate();
      if (!model_.is_possible()) return false;
    }
    return true;
  }

  void attempt(LocalSearch& local, const std::vector<uint32_t>& states, int trees) {
    local.load(states);
    if (local.cost() == kInfinite) return;
    if (!local.is_feasible() && !local.repair(trees)) return;
    local.descend();
    local.move_trees(trees, 40);
    if (local.cost() < best_ * 1.02) local.move_trees(trees * 2, 80);
    local.descend();
    if (local.is_feasible() && local.cost() < best_) {
      best_ = std::min(best_, options_.take(model_.choice(local.states())));
      best_states_ = local.states();
    }
  }

  void price(const UsageModel& usage, LocalSearch& local) {
    DualAscent dual(model_);
    const size_t points = usage.points();
    std::vector<double> prices(points, 0);
    std::vector<double> best_prices = prices;
    std::vector<double> sums(points + 1, 0);
    std::vector<double> mean_profile;
    std::vector<double> costs;
    std::vector<double> more;
    double pace = 1;
    double mean_share = 0.3;
    int without_progress = 0;
    for (int i = 0; i < 60 && !is_over(); ++i) dual.pass(kInfinite);
    if (dual.is_exact()) result_.bound = std::max(result_.bound, dual.bound());
    // What the prices go by. It is a bound, too, as long as doubles held all amounts exactly; afterwards it only guides.
    double guide = std::max(result_.bound, dual.bound());
    for (int iteration = 0; iteration < options_.iterations && !is_over(); ++iteration) {
      for (size_t i = 0; i < points; ++i) sums[i + 1] = sums[i] + prices[i];
      for (uint32_t v = 0; v < model_.size(); ++v) {
        if (!model_.is_left(v) || usage.items(v).empty()) continue;
        costs = model_.unary(v);
        more.assign(costs.size(), 0);
        usage.add_price(v, sums, more);
        for (size_t s = 0; s < costs.size(); ++s) costs[s] += std::floor(std::max(more[s], 0.0));
        dual.set_unary(v, costs);
      }
      for (int i = 0; i < 15; ++i) {
        const double before = dual.bound();
        for (int k = 0; k < 4; ++k) dual.pass(kInfinite);
        if (options_.out_of_time()) break;
        if (dual.bound() - before < 1e-4 * std::abs(dual.bound())) break;
      }
      double worth = 0;
      for (const double price : prices) worth += price * usage.limit();
      // Sums of prices are rounded: what they may be wrong by is given away.
      const double value = dual.bound() - worth - std::abs(worth) * 1e-10;
      if (dual.is_exact()) result_.bound = std::max(result_.bound, value);
      if (value > guide) {
        without_progress = 0;
        if (value > guide * (1 + 1e-6)) best_prices = prices;
        guide = value;
      } else if (++without_progress >= 20) {
        without_progress = 0;
        pace = std::max(pace * 0.7, 1e-4);
        prices = best_prices;
      }
      const std::vector<uint32_t> states = dual.rounded();
      const std::vector<double> profile = usage.profile(states);
      if (mean_profile.empty()) mean_profile = profile;
      for (size_t i = 0; i < points; ++i) {
        mean_profile[i] = (1 - mean_share) * mean_profile[i] + mean_share * profile[i];
      }
      if (iteration % 10 == 9 || (best_ == kInfinite && iteration % 3 == 2)) {
        local.set_prices(prices);
        attempt(local, states, 40);
        if (iteration % 30 == 29 && !best_states_.empty()) attempt(local, std::vector<uint32_t>(best_states_), 200);
      }
      double norm = 0;
      for (size_t i = 0; i < points; ++i) {
        const double g = mean_profile[i] - usage.limit();
        if (g > 0 || prices[i] > 0) norm += g * g;
      }
      if (norm == 0) continue;
      const double target = best_ < kInfinite ? best_ : guide * 1.1 + 1;
      const double step = pace * std::max(target - value, guide * 1e-5) / norm;
      for (size_t i = 0; i < points; ++i) {
        prices[i] = std::max(0.0, prices[i] + step * (mean_profile[i] - usage.limit()));
      }
    }
    for (const double p : prices) result_.priced += p > 0 ? 1 : 0;
  }

  const AssignmentProblem& problem_;
  const LimitedOptions& options_;
  PairwiseModel model_;
  Limited result_;
  double best_;
  std::vector<uint32_t> best_states_;
};

}  // namespace

Limited search_within_limit(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options) {
  return LimitSearch(problem, std::move(model), options).run();
}

}  // namespace shadowgraph
