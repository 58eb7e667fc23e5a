#include "sharding/solver/dual.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Bound on amounts, so that sums of a few stay below 2^53.
constexpr double kLargestExact = 0x1p50;

static SHADOWGRAPH_SOLVER_LOOPS void lower(double* least, const double* row, double base, size_t size) {
  for (size_t i = 0; i < size; ++i) least[i] = std::min(least[i], base + row[i]);
}

DualAscent::DualAscent(const PairwiseModel& model) : model_(model) {
  const size_t count = model.size();
  place_.resize(count, 0);
  halves_.resize(count);
  content_.resize(count);
  share_.resize(count);
  gone_.resize(count);
  unary_.resize(count);
  least_.resize(count, 0);
  messages_.resize(model.edges().size() * 2);
  for (const PairwiseModel::Edge& edge : model.edges()) tables_.push_back(edge.table);
  for (uint32_t v = 0; v < count; ++v) {
    if (!model.is_left(v)) continue;
    place_[v] = static_cast<uint32_t>(order_.size());
    order_.push_back(v);
    content_[v] = unary_[v] = model.unary(v);
    share_[v].resize(model.states(v), 0);
    gone_[v].resize(model.states(v), false);
    least_[v] = *std::min_element(content_[v].begin(), content_[v].end());
    bound_ += least_[v];
    for (const double cost : content_[v]) is_exact_ = is_exact_ && cost <= kLargestExact;
    for (const uint32_t e : model.edges_of(v)) {
      const PairwiseModel::Edge& edge = model.edges()[e];
      halves_[v].push_back({.edge = e, .other = edge.other(v), .first = edge.a == v});
      messages_[message(e, edge.a == v)].resize(model.states(v), 0);
    }
  }
}

void DualAscent::set_unary(uint32_t v, const std::vector<double>& costs) {
  std::vector<double>& content = content_[v];
  double least = kInfinite;
  for (size_t s = 0; s < costs.size(); ++s) {
    content[s] += costs[s] - unary_[v][s];
    least = std::min(least, content[s]);
    if (std::abs(content[s]) > kLargestExact || std::abs(costs[s]) > kLargestExact) is_exact_ = false;
  }
  unary_[v] = costs;
  bound_ += least - least_[v];
  least_[v] = least;
}

void DualAscent::set_pairs(uint32_t e, std::vector<double> costs) {
  tables_[e] = completed({.rows = tables_[e]->rows, .columns = tables_[e]->columns, .costs = std::move(costs)});
}

void DualAscent::pass(double cutoff) {
  std::vector<double> fresh;
  double largest = 0;
  for (size_t step = 0; step < order_.size(); ++step) {
    const uint32_t v = order_[forward_ ? step : order_.size() - 1 - step];
    std::vector<double>& content = content_[v];
    const size_t states = content.size();
    size_t ahead = 0;
    for (const Half& half : halves_[v]) ahead += (place_[half.other] > place_[v]) == forward_;
    for (size_t s = 0; s < states; ++s) {
      if (content[s] - least_[v] + bound_ >= cutoff && !gone_[v][s]) {
        gone_[v][s] = true;
        ++gone_count_;
      }
    }
    if (ahead == 0) {
      std::fill(share_[v].begin(), share_[v].end(), 0);
      continue;
    }
    const double parts = static_cast<double>(std::max(ahead, halves_[v].size() - ahead));
    for (size_t s = 0; s < states; ++s) share_[v][s] = std::floor(content[s] / parts);
    for (const Half& half : halves_[v]) {
      if ((place_[half.other] > place_[v]) != forward_) continue;
      const PairTable& table = *tables_[half.edge];
      const std::vector<double>& back = messages_[message(half.edge, half.first)];
      std::vector<double>& out = messages_[message(half.edge, !half.first)];
      const size_t others = out.size();
      fresh.assign(others, kInfinite);
      const AllowedPairs& few = half.first ? table.allowed : table.allowed_transposed;
      const double* row = half.first ? table.costs.data() : table.transposed.data();
      for (size_t s = 0; s < states; ++s, row += others) {
        const double base = share_[v][s] - back[s];
        if (few.begin.empty()) {
          lower(fresh.data(), row, base, others);
        } else {
          for (uint32_t i = few.begin[s]; i < few.begin[s + 1]; ++i) {
            fresh[few.column[i]] = std::min(fresh[few.column[i]], base + few.cost[i]);
          }
        }
      }
      // The edge has held the other end's share since the last pass; return it there.
      std::vector<double>& theirs = content_[half.other];
      const std::vector<double>& held = share_[half.other];
      double least = kInfinite;
      for (size_t t = 0; t < others; ++t) {
        theirs[t] += held[t] + fresh[t] - out[t];
        out[t] = fresh[t];
        largest = std::max({largest, std::abs(theirs[t]), std::abs(fresh[t])});
        least = std::min(least, theirs[t]);
      }
      bound_ += least - least_[half.other];
      least_[half.other] = least;
      for (size_t s = 0; s < states; ++s) content[s] -= share_[v][s];
    }
    const double least = *std::min_element(content.begin(), content.end());
    bound_ += least - least_[v];
    least_[v] = least;
  }
  forward_ = !forward_;
  if (!(largest <= kLargestExact) || !(std::abs(bound_) <= kLargestExact)) is_exact_ = false;
}

std::vector<std::vector<double>> DualAscent::given() const {
  std::vector<std::vector<double>> given = messages_;
  for (uint32_t e = 0; e < model_.edges().size(); ++e) {
    const PairwiseModel::Edge& edge = model_.edges()[e];
    if (!edge.table) continue;
    // forward_ is the direction of the next pass.
    const bool holds_a = (place_[edge.a] < place_[edge.b]) != forward_;
    std::vector<double>& holder = given[message(e, holds_a)];
    const std::vector<double>& share = share_[holds_a ? edge.a : edge.b];
    for (size_t s = 0; s < holder.size(); ++s) holder[s] -= share[s];
  }
  return given;
}

double DualAscent::certified_bound() const {
  // The sum of all minima is a bound for any distribution between edges and ends, if sums are exact. Each of n
  // additions loses at most 2^-53 of the largest partial sum.
  constexpr double kLost = 0x1p-52;
  const std::vector<std::vector<double>> gifts = given();
  const auto largest_of = [](const std::vector<double>& amounts) {
    double largest = 0;
    for (const double x : amounts) largest = x == kInfinite ? largest : std::max(largest, std::abs(x));
    return largest;
  };
  double bound = 0, lost = 0, sizes = 0;
  std::vector<double> sum;
  for (const uint32_t v : order_) {
    sum = unary_[v];
    double largest = largest_of(sum);
    for (const Half& half : halves_[v]) {
      const std::vector<double>& gift = gifts[message(half.edge, half.first)];
      for (size_t s = 0; s < sum.size(); ++s) sum[s] += gift[s];
      largest += largest_of(gift);
    }
    lost += kLost * largest * static_cast<double>(halves_[v].size() + 1);
    bound += *std::min_element(sum.begin(), sum.end());
    sizes += std::abs(bound);
  }
  for (uint32_t e = 0; e < model_.edges().size(); ++e) {
    if (!model_.edges()[e].table) continue;
    const std::vector<double>& to_a = gifts[message(e, true)];
    const std::vector<double>& to_b = gifts[message(e, false)];
    double least = kInfinite, largest = 0;
    const double* row = tables_[e]->costs.data();
    for (size_t i = 0; i < to_a.size(); ++i, row += to_b.size()) {
      for (size_t j = 0; j < to_b.size(); ++j) {
        least = std::min(least, row[j] - to_a[i] - to_b[j]);
        largest = row[j] == kInfinite ? largest : std::max(largest, row[j]);
      }
    }
    lost += 3 * kLost * (largest + largest_of(to_a) + largest_of(to_b));
    bound += least;
    sizes += std::abs(bound);
  }
  return bound - 2 * (lost + kLost * sizes);
}

void DualAscent::apply(PairwiseModel& model) const {
  model.reparametrize(content_, given());
  for (const uint32_t v : order_) model.drop(v, gone_[v]);
}

std::vector<uint32_t> DualAscent::rounded() const {
  std::vector<uint32_t> states(model_.size(), 0);
  std::vector<double> sum;
  for (size_t step = 0; step < order_.size(); ++step) {
    const uint32_t v = order_[forward_ ? step : order_.size() - 1 - step];
    sum = unary_[v];
    for (const Half& half : halves_[v]) {
      if ((place_[half.other] > place_[v]) == forward_) {
        const std::vector<double>& in = messages_[message(half.edge, half.first)];
        for (size_t s = 0; s < sum.size(); ++s) sum[s] += in[s];
      } else {
        const PairTable& table = *tables_[half.edge];
        const double* row = half.first ? table.transposed.data() : table.costs.data();
        row += size_t{states[half.other]} * sum.size();
        for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
      }
    }
    states[v] = static_cast<uint32_t>(std::min_element(sum.begin(), sum.end()) - sum.begin());
  }
  return states;
}

void round_prices(std::vector<double>& prices) {
  const double total = std::accumulate(prices.begin(), prices.end(), 0.0);
  if (total == 0) return;
  const double unit = std::ldexp(1.0, std::ilogb(total) - 48);
  for (double& price : prices) price = std::floor(price / unit) * unit;
}

double price_of_limit(const std::vector<double>& prices, double limit) {
  double worth = 0;
  for (const double price : prices) worth += price * limit;
  return worth * (1 + 1e-12);
}

bool move_prices(std::vector<double>& prices, std::span<const double> profile, double limit, double length) {
  double norm = 0;
  for (size_t i = 0; i < prices.size(); ++i) {
    const double over = profile[i] - limit;
    if (over > 0 || prices[i] > 0) norm += over * over;
  }
  if (norm == 0) return false;
  const double step = length / norm;
  for (size_t i = 0; i < prices.size(); ++i) prices[i] = std::max(0.0, prices[i] + step * (profile[i] - limit));
  return true;
}

void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out, double out_cost) {
  const std::vector<double> sums = sums_of(prices);
  std::vector<double> costs;
  std::vector<double> more;
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (!model.is_left(v) || (out.empty() && usage.items(v).empty())) continue;
    costs = model.unary(v);
    more.assign(costs.size(), 0);
    add_price(usage.items(v), sums, more);
    // Round down, so that costs do not exceed the exact sums.
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
    add_price(usage.pairs(e), sums, more);
    for (size_t i = 0; i < costs.size(); ++i) costs[i] += std::floor(more[i] * (1 - 1e-12));
    dual.set_pairs(e, costs);
  }
}

}  // namespace shadowgraph
