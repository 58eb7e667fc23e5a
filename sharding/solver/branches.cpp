#include "sharding/solver/branches.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "sharding/solver/dual.h"
#include "sharding/solver/prices.h"

namespace shadowgraph {

namespace {

constexpr int kBranchSteps = 30;  // of prices in a branch

class Branches {
 public:
  Branches(const BranchSearch& search, double bound) : search_(search), bound_(bound) {}

  double run(const std::vector<double>& prices) {
    if (search_.best() == kInfinite || is_over()) return bound_;
    DualAscent dual(search_.model);
    for (int i = 0; i < 60; ++i) dual.pass(kInfinite);
    std::priority_queue<Branch> open;
    open.push({.bound = bound_, .prices = prices, .out = std::vector<std::vector<bool>>(search_.model.size())});
    for (int count = 0; count < search_.iterations && !is_over(); ++count) {
      Branch from = open.top();
      open.pop();
      const Split split = bounded(dual, from);
      if (from.bound < search_.best() - 0.5) {
        // Without a variable to split, the bound stays what it is.
        if (split.high.empty()) {
          const double others = open.empty() ? search_.best() : open.top().bound;
          bound_ = std::max(bound_, std::min({from.bound, others, search_.best()}));
          break;
        }
        for (const bool high : {false, true}) {
          Branch half = from;
          std::vector<bool>& out = half.out[split.variable];
          out.resize(search_.model.states(split.variable), false);
          for (size_t s = 0; s < out.size(); ++s) out[s] = out[s] || split.high[s] == high;
          open.push(std::move(half));
        }
      }
      bound_ = std::max(bound_, open.empty() ? search_.best() : std::min(open.top().bound, search_.best()));
      if (open.empty()) break;
    }
    return bound_;
  }

 private:
  struct Branch {
    double bound = 0;
    std::vector<double> prices{};
    std::vector<std::vector<bool>> out{};  // by variable: states it is without; empty: none
    bool operator<(const Branch& other) const { return bound > other.bound; }  // the least first
  };

  bool is_over() const { return search_.is_over(bound_); }

  struct Split {
    uint32_t variable = 0;
    std::vector<bool> high{};  // by state
  };

  // Raises the bound of a branch. Returns the variable whose states differ most in what they use, at the branch's
  // prices.
  Split bounded(DualAscent& dual, Branch& branch) {
    std::vector<double> prices = branch.prices;
    std::vector<double> amounts = amounts_at(prices);
    std::vector<double> low(search_.model.size(), kInfinite);
    std::vector<double> high(search_.model.size(), -kInfinite);
    double pace = 0.1;
    double reached = -kInfinite;
    std::vector<uint32_t> last = dual.rounded();
    std::vector<uint32_t> changes(search_.model.size(), 0);
    for (int step = 0; step < kBranchSteps && branch.bound < search_.best() - 0.5 && !search_.is_out_of_time();
         ++step) {
      round_prices(prices);
      set_prices(dual, search_.model, search_.usage, prices, branch.out, search_.best());
      for (int i = 0; i < 6; ++i) dual.pass(kInfinite);
      const double value = dual.bound() - worth_of(prices, search_.usage.limit());
      if (value > reached) {
        if (value > branch.bound)
          branch.bound =
              std::max(branch.bound, std::ceil(dual.certified_bound() - worth_of(prices, search_.usage.limit())));
        reached = value;
        branch.prices = prices;
        pace *= 1.1;
      } else {
        pace *= 0.6;
        prices = branch.prices;
      }
      const std::vector<uint32_t> states = dual.rounded();
      for (uint32_t v = 0; v < search_.model.size(); ++v) {
        if (!search_.model.is_left(v)) continue;
        changes[v] += states[v] != last[v] ? 1 : 0;
        low[v] = std::min(low[v], amounts[first_[v] + states[v]]);
        high[v] = std::max(high[v], amounts[first_[v] + states[v]]);
      }
      last = states;
      if (step == kBranchSteps / 2) {
        search_.polish(states, prices);
      }
      const std::vector<double> profile = search_.usage.profile(search_.model, states);
      double norm = 0;
      for (size_t i = 0; i < prices.size(); ++i) {
        const double over = profile[i] - search_.usage.limit();
        if (over > 0 || prices[i] > 0) norm += over * over;
      }
      if (norm == 0) break;
      const double length = pace * std::max(search_.best() - reached, search_.best() * 1e-5) / norm;
      for (size_t i = 0; i < prices.size(); ++i) {
        prices[i] = std::max(0.0, prices[i] + length * (profile[i] - search_.usage.limit()));
      }
    }
    Split split;
    double widest = 0;
    for (uint32_t v = 0; v < search_.model.size(); ++v) {
      if (high[v] - low[v] > widest) {
        widest = high[v] - low[v];
        split.variable = v;
      }
    }
    if (widest == 0) return state_to_split(branch, last, changes);
    const double middle = (low[split.variable] + high[split.variable]) / 2;
    for (uint32_t s = 0; s < search_.model.states(split.variable); ++s) {
      split.high.push_back(amounts[first_[split.variable] + s] > middle);
    }
    return split;
  }

  // Decides where usages do not differ. Takes the variable that was of two minds most often, or else the one with most
  // neighbours, and parts its state from all others.
  Split state_to_split(const Branch& branch, const std::vector<uint32_t>& states,
                       const std::vector<uint32_t>& changes) const {
    Split split;
    std::pair<uint32_t, size_t> most{0, 0};
    for (uint32_t v = 0; v < search_.model.size(); ++v) {
      if (!search_.model.is_left(v)) continue;
      const std::vector<bool>& out = branch.out[v];
      if (search_.model.states(v) - static_cast<size_t>(std::count(out.begin(), out.end(), true)) < 2) continue;
      if (!out.empty() && out[states[v]]) continue;
      const std::pair worth{changes[v], search_.model.edges_of(v).size() + 1};
      if (worth <= most) continue;
      most = worth;
      split.variable = v;
    }
    if (most.second == 0) return split;
    split.high.resize(search_.model.states(split.variable), false);
    split.high[states[split.variable]] = true;
    return split;
  }

  // Returns what each state uses at prices; for pairs it takes the mean.
  std::vector<double> amounts_at(const std::vector<double>& prices) {
    std::vector<double> sums(prices.size() + 1, 0);
    for (size_t i = 0; i < prices.size(); ++i) sums[i + 1] = sums[i] + prices[i];
    std::vector<double> amounts;
    std::vector<double> here;
    first_.assign(search_.model.size(), 0);
    for (uint32_t v = 0; v < search_.model.size(); ++v) {
      first_[v] = amounts.size();
      if (!search_.model.is_left(v)) continue;
      here.assign(search_.model.states(v), 0);
      search_.usage.add_price(v, sums, here);
      for (const uint32_t e : search_.model.edges_of(v)) {
        if (search_.usage.pairs(e).empty()) continue;
        const PairwiseModel::Edge& edge = search_.model.edges()[e];
        std::vector<double> pairs(edge.table->costs.size(), 0);
        search_.usage.add_pair_price(e, sums, pairs);
        const uint32_t columns = edge.table->columns;
        const double others = edge.a == v ? columns : edge.table->rows;
        for (size_t i = 0; i < pairs.size(); ++i) here[edge.a == v ? i / columns : i % columns] += pairs[i] / others;
      }
      amounts.insert(amounts.end(), here.begin(), here.end());
    }
    return amounts;
  }

  const BranchSearch& search_;
  double bound_;
  std::vector<size_t> first_;  // state of each variable in what amounts_at gives
};

}  // namespace

double bound_by_branches(const BranchSearch& search, double bound, const std::vector<double>& prices) {
  return Branches(search, bound).run(prices);
}

}  // namespace shadowgraph
