#include "sharding/solver/prices.h"

#include <cmath>

namespace shadowgraph {

void round_prices(std::vector<double>& prices) {
  double total = 0;
  for (const double price : prices) total += price;
  if (total == 0) return;
  const double unit = std::ldexp(1.0, std::ilogb(total) - 48);
  for (double& price : prices) price = std::floor(price / unit) * unit;
}

double worth_of(const std::vector<double>& prices, double limit) {
  double worth = 0;
  for (const double price : prices) worth += price * limit;
  return worth * (1 + 1e-12);
}

void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out, double out_cost) {
  std::vector<double> sums(prices.size() + 1, 0);
  for (size_t i = 0; i < prices.size(); ++i) sums[i + 1] = sums[i] + prices[i];
  std::vector<double> costs;
  std::vector<double> more;
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (!model.is_left(v) || (out.empty() && usage.items(v).empty())) continue;
    costs = model.unary(v);
    more.assign(costs.size(), 0);
    usage.add_price(v, sums, more);
    // Rounding down keeps costs at or below what exact sums would give.
    for (size_t s = 0; s < costs.size(); ++s) {
      costs[s] += std::floor(more[s] * (1 - 1e-12));
      if (!out.empty() && !out[v].empty() && out[v][s]) costs[s] += out_cost;
    }
    dual.set_unary(v, costs);
  }
  for (uint32_t e = 0; e < model.edges().size(); ++e) {
    if (usage.pairs(e).empty()) continue;
    costs = model.edges()[e].table->costs;
    more.assign(costs.size(), 0);
    usage.add_pair_price(e, sums, more);
    for (size_t i = 0; i < costs.size(); ++i) costs[i] += std::floor(more[i] * (1 - 1e-12));
    dual.set_pairs(e, costs);
  }
}

}  // namespace shadowgraph
