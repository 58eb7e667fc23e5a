// Lower bounds of a pairwise model with a usage limit, by branch and bound.
//
// If one price separates choices that use too much from choices that use too little, no prices give a better bound.
// Splitting a variable's states in halves with separate prices helps. The one with the lowest bound is split next.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <queue>
#include <random>
#include <span>
#include <vector>

#include "sharding/solver/dual.h"
#include "sharding/solver/local_search.h"
#include "sharding/solver/minimum.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"
#include "support/threads.h"

namespace shadowgraph {
namespace {

constexpr int kBranchSteps = 30;                     // price steps per branch
constexpr double kPriceShare = 0.4;                  // share of the time for bounds; the rest is for the search
constexpr double kMinPace = 1e-4;                    // smallest relative step of the prices
constexpr double kSearchShare = 0.45;                // share of the time after which branching begins
constexpr int64_t kSmallEntries = int64_t{1} << 21;  // maximum table entries of a model that is branched on
constexpr double kMaxPriceShare = 0.7;               // kPriceShare while the bound rises
constexpr double kLittleOfGap = 0.01;
constexpr int kChains = 2;                                // search chains, independent of the number of threads
constexpr double kWeights[] = {1.0, 0.7, 0.4, 0.2, 0.0};  // of prices in a round of the search
constexpr double kWorkOfPasses = 4e6;                     // table entries visited between price updates

class LimitSearch {
 public:
  LimitSearch(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options)
      : problem_(problem), options_(options), model_(std::move(model)), best_(options.best) {}

  Limited run() {
    result_.bound = options_.bound;
    result_.possible = simplify(problem_, model_, /*within_limit=*/true);
    if (!result_.possible) return result_;
    usage_ = std::make_unique<UsageModel>(problem_, model_);
    compact_ = std::make_unique<CompactModel>(model_, *usage_);
    for (uint64_t k = 1; k <= kChains; ++k) chains_.push_back({LocalSearch(*compact_, k), std::mt19937_64(~k)});
    prices_.assign(usage_->points(), 0);
    begin();
    find_prices();
    improve(is_small() ? kSearchShare : 1);
    if (is_small()) branch();
    return result_;
  }

 private:
  struct Chain {
    LocalSearch search;
    std::mt19937_64 noise;
    int stale = 0;  // rounds without improvement
    double cost = kInfinite;
    std::vector<uint32_t> best{};  // feasible
  };

  bool is_out_of_time() const { return options_.time_spent() >= 1; }
  bool is_over() const {
    return (best_ < kInfinite && best_ - result_.bound <= std::max(options_.gap * best_, 0.5)) || is_out_of_time();
  }

  bool is_small() const { return model_.entries() <= kSmallEntries; }

  void note(Chain& chain) const {
    if (!chain.search.is_feasible() || chain.search.cost() >= chain.cost) return;
    chain.cost = chain.search.cost();
    chain.best = chain.search.states();
  }

  void take(const Chain& chain) {
    if (chain.cost >= best_) return;
    best_states_ = chain.best;
    best_ = std::min(best_, options_.take(model_.choice(compact_->expanded(chain.best, model_.size()))));
  }

  void walk(Chain& chain, const std::vector<double>& row_prices, double weight, int64_t moves) const {
    chain.search.set_prices(row_prices, weight);
    for (int64_t i = 0; i < moves && (i % 64 != 0 || !is_out_of_time()); ++i) {
      chain.search.step();
      note(chain);
    }
  }

  // Keeps the choice closest to feasibility as a starting point.
  void keep_nearest(const LocalSearch& search) {
    const std::pair distance(std::floor(search.cost() / CompactModel::kForbiddenCost), search.excess());
    if (distance >= nearest_) return;
    nearest_ = distance;
    nearest_states_ = search.states();
  }

  void polish(std::span<const uint32_t> states) {
    Chain& chain = chains_[0];
    chain.search.load(states);
    note(chain);
    const int64_t moves = std::clamp<int64_t>(compact_->size(), 50, 20000);
    walk(chain, row_prices_, 1, moves);
    walk(chain, row_prices_, 0, moves / 4);
    keep_nearest(chain.search);
    take(chain);
  }

  void begin() {
    row_prices_.assign(compact_->rows(), 0);
    nearest_states_.assign(compact_->size(), 0);
    // Start from the minimum usage of each variable.
    for (uint32_t v = 0; v < compact_->size(); ++v) {
      std::vector<double> bytes(compact_->states(v), 0);
      for (const CompactModel::Item& item : compact_->items_of(v)) {
        for (size_t s = 0; s < bytes.size(); ++s) bytes[s] += compact_->bytes[item.bytes + s] * (item.end - item.begin);
      }
      nearest_states_[v] = static_cast<uint32_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    }
    for (const std::vector<uint32_t>& start : options_.starts) {
      const std::vector<uint32_t> states = model_.states_of(start);
      if (!states.empty()) polish(compact_->compact(states));
    }
  }

  void set_row_prices(const std::vector<double>& prices) {
    for (size_t r = 0; r < row_prices_.size(); ++r) row_prices_[r] = prices[compact_->point_of_row[r]];
  }

  void find_prices() {
    DualAscent dual(model_);
    const size_t points = usage_->points();
    bool rises = true;  // the bound rises noticeably
    double before = -kInfinite;
    const auto is_over_here = [&] {
      return is_over() || options_.time_spent() > (rises ? kMaxPriceShare : kPriceShare);
    };
    std::vector<double> prices(points, 0);
    std::vector<double> mean_profile;
    double pace = 0.3;
    const double mean_share = 0.3;
    int without_progress = 0;
    int converged = 0;
    const int most_passes =
        static_cast<int>(std::clamp(kWorkOfPasses / static_cast<double>(model_.entries() + 1), 2.0, 60.0));
    for (int i = 0; i < 60 && !is_over_here(); ++i) dual.pass(kInfinite);
    result_.bound = std::max(result_.bound, std::ceil(dual.certified_bound()));
    // Guides the prices. Not a bound yet, since rounding is not accounted for.
    double guide = dual.bound();
    double certified = std::max(result_.bound, guide);
    for (int iteration = 0; iteration < options_.iterations && !is_over_here(); ++iteration) {
      round_prices(prices);
      set_prices(dual, model_, *usage_, prices);
      for (int i = 0; i < most_passes; i += 4) {
        const double before = dual.bound();
        for (int k = 0; k < std::min(4, most_passes); ++k) dual.pass(kInfinite);
        if (is_out_of_time() || dual.bound() - before < 1e-4 * std::abs(dual.bound())) break;
      }
      const double worth = price_of_limit(prices, usage_->limit());
      const double value = dual.bound() - worth;
      const double target = best_ < kInfinite ? best_ : guide * 1.1 + 1;
      if (value > guide) {
        without_progress = 0;
        if (value > guide * (1 + 1e-6)) prices_ = prices;
        guide = value;
        if (value > certified + 1e-2 * std::max(std::abs(best_ < kInfinite ? best_ - certified : certified), 1.0)) {
          certified = value;
          result_.bound = std::max(result_.bound, std::ceil(dual.certified_bound() - worth));
        }
        pace = std::min(pace * 1.1, 1.0);
        converged = 0;
      } else if (++without_progress >= 20 || guide - value > 0.1 * (target - guide)) {
        // The step was too long: return to the best prices and shorten it.
        without_progress = 0;
        pace = std::max(pace * 0.7, kMinPace);
        prices = prices_;
        if (pace <= kMinPace && ++converged > 10) break;
      }
      const std::vector<uint32_t> states = dual.rounded();
      const std::vector<double> profile = usage_->profile(model_, states);
      if (mean_profile.empty()) mean_profile = profile;
      for (size_t i = 0; i < points; ++i) {
        mean_profile[i] = (1 - mean_share) * mean_profile[i] + mean_share * profile[i];
      }
      if (iteration % 10 == 9) {
        rises = guide - before > kLittleOfGap * (target - guide);
        before = guide;
      }
      if (iteration % 25 == 3) {
        set_row_prices(prices);
        polish(compact_->compact(states));
      }
      move_prices(prices, mean_profile, usage_->limit(), pace * std::max(target - guide, guide * 1e-5));
    }
    round_prices(prices_);
    set_prices(dual, model_, *usage_, prices_);
    for (int i = 0; i < 4; ++i) dual.pass(kInfinite);
    result_.bound =
        std::max(result_.bound, std::ceil(dual.certified_bound() - price_of_limit(prices_, usage_->limit())));
  }

  struct Branch {
    double bound = 0;
    std::vector<double> prices{};
    std::vector<std::vector<bool>> out{};  // by variable: excluded states; empty: none
    bool operator<(const Branch& other) const { return bound > other.bound; }  // lowest first
  };

  struct Split {
    uint32_t variable = 0;
    std::vector<bool> high{};  // by state
  };

  // Raises the bound of a branch. Returns the variable whose states differ most in usage, at the branch's prices.
  Split bounded(DualAscent& dual, Branch& branch) {
    std::vector<double> prices = branch.prices;
    std::vector<double> amounts = amounts_at(prices);
    std::vector<double> low(model_.size(), kInfinite);
    std::vector<double> high(model_.size(), -kInfinite);
    double pace = 0.1;
    double reached = -kInfinite;
    std::vector<uint32_t> last = dual.rounded();
    std::vector<uint32_t> changes(model_.size(), 0);
    for (int step = 0; step < kBranchSteps && branch.bound < best_ - 0.5 && !is_out_of_time(); ++step) {
      round_prices(prices);
      set_prices(dual, model_, *usage_, prices, branch.out, best_);
      for (int i = 0; i < 6; ++i) dual.pass(kInfinite);
      const double value = dual.bound() - price_of_limit(prices, usage_->limit());
      if (value > reached) {
        if (value > branch.bound)
          branch.bound =
              std::max(branch.bound, std::ceil(dual.certified_bound() - price_of_limit(prices, usage_->limit())));
        reached = value;
        branch.prices = prices;
        pace *= 1.1;
      } else {
        pace *= 0.6;
        prices = branch.prices;
      }
      const std::vector<uint32_t> states = dual.rounded();
      for (uint32_t v = 0; v < model_.size(); ++v) {
        if (!model_.is_left(v)) continue;
        changes[v] += states[v] != last[v] ? 1 : 0;
        low[v] = std::min(low[v], amounts[first_[v] + states[v]]);
        high[v] = std::max(high[v], amounts[first_[v] + states[v]]);
      }
      last = states;
      if (step == kBranchSteps / 2) {
        set_row_prices(prices);
        polish(compact_->compact(states));
      }
      const std::vector<double> profile = usage_->profile(model_, states);
      const double length = pace * std::max(best_ - reached, best_ * 1e-5);
      if (!move_prices(prices, profile, usage_->limit(), length)) break;
    }
    Split split;
    double widest = 0;
    for (uint32_t v = 0; v < model_.size(); ++v) {
      if (high[v] - low[v] > widest) {
        widest = high[v] - low[v];
        split.variable = v;
      }
    }
    if (widest == 0) return state_to_split(branch, last, changes);
    const double middle = (low[split.variable] + high[split.variable]) / 2;
    for (uint32_t s = 0; s < model_.states(split.variable); ++s) {
      split.high.push_back(amounts[first_[split.variable] + s] > middle);
    }
    return split;
  }

  // Splits where usages do not differ: the variable that alternated between two states most often, or else the one with
  // most neighbors; separates its state from all others.
  Split state_to_split(const Branch& branch, const std::vector<uint32_t>& states,
                       const std::vector<uint32_t>& changes) const {
    Split split;
    std::pair<uint32_t, size_t> most{0, 0};
    for (uint32_t v = 0; v < model_.size(); ++v) {
      if (!model_.is_left(v)) continue;
      const std::vector<bool>& out = branch.out[v];
      if (model_.states(v) - static_cast<size_t>(std::count(out.begin(), out.end(), true)) < 2) continue;
      if (!out.empty() && out[states[v]]) continue;
      const std::pair worth{changes[v], model_.edges_of(v).size() + 1};
      if (worth <= most) continue;
      most = worth;
      split.variable = v;
    }
    if (most.second == 0) return split;
    split.high.resize(model_.states(split.variable), false);
    split.high[states[split.variable]] = true;
    return split;
  }

  // Returns the usage of each state at prices; for pairs, the mean.
  std::vector<double> amounts_at(const std::vector<double>& prices) {
    const std::vector<double> sums = sums_of(prices);
    std::vector<double> amounts;
    std::vector<double> here;
    first_.assign(model_.size(), 0);
    for (uint32_t v = 0; v < model_.size(); ++v) {
      first_[v] = amounts.size();
      if (!model_.is_left(v)) continue;
      here.assign(model_.states(v), 0);
      add_price(usage_->items(v), sums, here);
      for (const uint32_t e : model_.edges_of(v)) {
        if (usage_->pairs(e).empty()) continue;
        const PairwiseModel::Edge& edge = model_.edges()[e];
        std::vector<double> pairs(edge.table->costs.size(), 0);
        add_price(usage_->pairs(e), sums, pairs);
        const uint32_t columns = edge.table->columns;
        const double others = edge.a == v ? columns : edge.table->rows;
        for (size_t i = 0; i < pairs.size(); ++i) here[edge.a == v ? i / columns : i % columns] += pairs[i] / others;
      }
      amounts.insert(amounts.end(), here.begin(), here.end());
    }
    return amounts;
  }

  void branch() {
    if (best_ == kInfinite || is_over()) return;
    DualAscent dual(model_);
    for (int i = 0; i < 60; ++i) dual.pass(kInfinite);
    std::priority_queue<Branch> open;
    open.push({.bound = result_.bound, .prices = prices_, .out = std::vector<std::vector<bool>>(model_.size())});
    for (int count = 0; count < options_.iterations && !is_over(); ++count) {
      Branch from = open.top();
      open.pop();
      const Split split = bounded(dual, from);
      if (from.bound < best_ - 0.5) {
        // If no variable can be split, the bound of this branch is final.
        if (split.high.empty()) {
          const double others = open.empty() ? best_ : open.top().bound;
          result_.bound = std::max(result_.bound, std::min({from.bound, others, best_}));
          break;
        }
        for (const bool high : {false, true}) {
          Branch half = from;
          std::vector<bool>& out = half.out[split.variable];
          out.resize(model_.states(split.variable), false);
          for (size_t s = 0; s < out.size(); ++s) out[s] = out[s] || split.high[s] == high;
          open.push(std::move(half));
        }
      }
      result_.bound = std::max(result_.bound, open.empty() ? best_ : std::min(open.top().bound, best_));
      if (open.empty()) break;
    }
  }

  // Returns the best prices perturbed over ranges of time, more the longer there has been no improvement.
  std::vector<double> noisy_prices(Chain& chain) const {
    std::vector<double> prices = row_prices_;
    const double amount = std::min(1.5, 0.1 * chain.stale);
    const auto uniform = [&] { return static_cast<double>(chain.noise() >> 11) * 0x1p-53; };
    const double scale = std::exp2(4 * uniform() - 2);
    for (size_t r = 0; r < prices.size();) {
      const auto length = static_cast<size_t>(1 + std::exp2(uniform() * std::log2(static_cast<double>(prices.size()))));
      const double factor = scale * std::exp(amount * (2 * uniform() - 1));
      for (const size_t end = std::min(r + length, prices.size()); r < end; ++r) prices[r] *= factor;
    }
    return prices;
  }

  // Runs a round of the search, in which prices on usage start high and decrease to zero.
  void round(Chain& chain, double scale, int64_t length) const {
    if (chain.stale > 0 && chain.noise() % 2 == 0) {
      chain.search.force(static_cast<int>(1 + chain.noise() % 3));
      walk(chain, row_prices_, 1, length);
      walk(chain, row_prices_, 0.4, length);
      chain.search.release();
    } else if (chain.stale > 0) {
      // Diversify: only prices restrict usage now.
      chain.search.set_bounded(false);
      walk(chain, noisy_prices(chain), 1, length);
      chain.search.set_bounded(true);
    }
    for (const double weight : kWeights) walk(chain, row_prices_, weight * (chain.stale > 0 ? 1 : scale), length);
  }

  void improve(double share) {
    set_row_prices(prices_);
    const int64_t length = std::clamp<int64_t>(compact_->size() / 4, 100, 4000);
    const std::vector<uint32_t>& from = best_states_.empty() ? nearest_states_ : best_states_;
    for (Chain& chain : chains_) chain.search.load(from);
    for (int64_t moves = 0; !is_over() && options_.time_spent() < share && moves < options_.moves;) {
      for_each_parallel(
          chains_.size(), [&](size_t c) { round(chains_[c], c == 0 ? 1 : 0.3, length); }, options_.threads);
      moves += length * static_cast<int64_t>(std::size(kWeights)) * kChains;
      const double before = best_;
      for (const Chain& chain : chains_) take(chain);
      for (Chain& chain : chains_) {
        chain.stale = best_ < before ? 0 : chain.stale + 1;
        if (!best_states_.empty()) chain.search.load(best_states_);
      }
    }
  }

  const AssignmentProblem& problem_;
  const LimitedOptions& options_;
  PairwiseModel model_;
  std::unique_ptr<UsageModel> usage_;
  std::unique_ptr<CompactModel> compact_;
  std::vector<Chain> chains_;
  std::vector<double> prices_;      // by point; of the best bound
  std::vector<double> row_prices_;  // by row of the compact model
  std::vector<size_t> first_;       // first state of each variable in the result of amounts_at()
  Limited result_;
  double best_;
  std::vector<uint32_t> best_states_;
  std::vector<uint32_t> nearest_states_;
  std::pair<double, double> nearest_{kInfinite, kInfinite};
};

}  // namespace

Limited search_within_limit(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options) {
  return LimitSearch(problem, std::move(model), options).run();
}

}  // namespace shadowgraph
