#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "shadowgraph/shard/solver.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Segment tree over points of time: range addition and maximum.
class UsageTree {
 public:
  explicit UsageTree(size_t points = 0);
  void add(uint32_t begin, uint32_t end, double amount);
  double highest() const { return size_ == 0 ? 0 : most_[1]; }
  double highest(uint32_t begin, uint32_t end) const;

 private:
  uint32_t size_ = 0;          // a power of 2
  std::vector<double> most_;   // maximum below a tree node, including its own amount
  std::vector<double> added_;  // to all points below it
};

struct UsageItem {
  uint32_t begin = 0;  // points
  uint32_t end = 0;
  std::vector<double> bytes;  // by state; for an edge by pair, row-major in a
};

// Returns prefix sums of prices, beginning with 0.
inline std::vector<double> sums_of(std::span<const double> prices) {
  std::vector<double> sums(prices.size() + 1, 0);
  std::partial_sum(prices.begin(), prices.end(), sums.begin() + 1);
  return sums;
}

// Adds to `costs` the priced usage of each state of a variable or pair of an edge, given sums_of() prices.
inline void add_price(std::span<const UsageItem> items, std::span<const double> sums, std::vector<double>& costs) {
  for (const UsageItem& item : items) {
    const double price = sums[item.end] - sums[item.begin];
    if (price == 0) continue;
    for (size_t s = 0; s < costs.size(); ++s) costs[s] += price * item.bytes[s];
  }
}

// Keeps only points of time whose live set is maximal.
class UsageModel {
 public:
  UsageModel(const AssignmentProblem& problem, const PairwiseModel& model);

  size_t points() const { return times_.size(); }
  const std::vector<UsageItem>& items(uint32_t v) const { return items_[v]; }
  double limit() const { return limit_; }
  const std::vector<UsageItem>& pairs(uint32_t e) const { return pairs_[e]; }

  std::vector<double> profile(const PairwiseModel& model, std::span<const uint32_t> states) const;

 private:
  std::vector<int64_t> times_;
  std::vector<std::vector<UsageItem>> items_;
  std::vector<std::vector<UsageItem>> pairs_;
  double limit_ = 0;
};

// A pairwise model and its usages in flat arrays for local search: tables in both orders, without infinite entries.
struct CompactModel {
  // The cost of forbidden entries: above all allowed sums, and small enough for exact sums of a hundred.
  static constexpr double kForbiddenCost = 0x1p46;

  struct Edge {
    uint32_t a = 0, b = 0;
    uint64_t rows_of_a = 0;  // begin of its table in `pairs`, row-major in a
    uint64_t rows_of_b = 0;
  };
  struct Incidence {
    uint32_t edge = 0, other = 0;
  };
  struct Item {
    uint32_t begin = 0;  // rows
    uint32_t end = 0;
    uint64_t bytes = 0;  // begin of its amounts by state in `bytes`
  };

  std::vector<uint32_t> variable;  // of the pairwise model: variables with more than one state
  std::vector<uint32_t> first;     // states of v are [first[v], first[v + 1])
  std::vector<double> cost;
  std::vector<Edge> edges;
  std::vector<double> pairs;
  std::vector<uint32_t> incident_first;
  std::vector<Incidence> incident;
  std::vector<uint32_t> item_first;
  std::vector<Item> items;
  // The pairs of edge e are [pair_first[e], pair_first[e + 1]), row-major in a.
  std::vector<uint32_t> pair_first;
  std::vector<Item> pair_items;
  std::vector<double> bytes;
  // Limits of points that can be exceeded, less the usage of variables with a single state. Each such point has a row;
  // a point that cannot be exceeded is mapped to the row of the next one.
  std::vector<double> row_limit;
  std::vector<uint32_t> row_of_point;
  std::vector<uint32_t> point_of_row;
  double constant = 0;  // cost of variables with a single state

  CompactModel(const PairwiseModel& model, const UsageModel& usage);

  uint32_t size() const { return static_cast<uint32_t>(variable.size()); }
  uint32_t states(uint32_t v) const { return first[v + 1] - first[v]; }
  size_t rows() const { return row_limit.size(); }
  // Returns the costs of pairs with that state of v, by state of the other end.
  const double* row(uint32_t edge, uint32_t v, uint32_t state) const {
    const Edge& e = edges[edge];
    return e.a == v ? pairs.data() + e.rows_of_a + uint64_t{state} * states(e.b)
                    : pairs.data() + e.rows_of_b + uint64_t{state} * states(e.a);
  }
  // Returns the index of a pair of states within its item.
  size_t pair_at(const Edge& edge, uint32_t state_of_a, uint32_t state_of_b) const {
    return size_t{state_of_a} * states(edge.b) + state_of_b;
  }
  std::span<const Incidence> incident_to(uint32_t v) const { return part(incident, incident_first, v); }
  std::span<const Item> items_of(uint32_t v) const { return part(items, item_first, v); }
  std::span<const Item> pair_items_of(uint32_t edge) const { return part(pair_items, pair_first, edge); }
  // Converts states of the pairwise model to states of this one.
  std::vector<uint32_t> compact(std::span<const uint32_t> model_states) const;
  std::vector<uint32_t> expanded(std::span<const uint32_t> states, size_t model_size) const;

 private:
  template <class T>
  static std::span<const T> part(const std::vector<T>& all, const std::vector<uint32_t>& first, uint32_t i) {
    return {all.data() + first[i], all.data() + first[i + 1]};
  }
  // Steps of the constructor, in order.
  //
  // Adds variables with more than one state. Returns the index of each of the model's variables.
  std::vector<uint32_t> add_variables(const PairwiseModel& model);
  // Adds edges between two of these; an edge with only one such end becomes part of that end's costs. Returns the index
  // of each of the model's edges.
  std::vector<uint32_t> add_edges(const PairwiseModel& model, std::span<const uint32_t> place);
  void link_edges();
  void add_rows(const PairwiseModel& model, const UsageModel& usage);
  // Adds usages that differ by state: those of an edge to the edge, or to its only end with more than one state.
  void add_items(const PairwiseModel& model, const UsageModel& usage, std::span<const uint32_t> edge_of);
};

}  // namespace shadowgraph
