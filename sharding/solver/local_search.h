// Local search. A move reoptimizes the states of a random tree of variables by dynamic programming over costs and
// priced usages. It is accepted if usage above the limit does not increase.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sharding/solver/usage.h"

namespace shadowgraph {

class LocalSearch {
 public:
  LocalSearch(const CompactModel& model, uint64_t seed);

  void load(std::span<const uint32_t> states);
  void set_prices(std::span<const double> prices, double weight);
  // If not bounded, moves may exceed the limit; only prices discourage it.
  void set_bounded(bool bounded) { bounded_ = bounded; }
  // Sets `count` random variables to random states and keeps them there until release().
  void force(int count);
  void release();
  // Makes one move. While bounded, excess() never increases, unless a forbidden pair is removed.
  void step();

  const std::vector<uint32_t>& states() const { return states_; }
  double cost() const { return cost_ + model_.constant; }
  double excess() const { return excess_sum_; }  // usage above limits, summed over all rows
  bool is_allowed() const { return cost_ < CompactModel::kForbiddenCost; }
  bool is_feasible() const { return excess_sum_ == 0 && is_allowed(); }

 private:
  void grow(uint32_t root, uint32_t size);
  void optimize_tree();
  void add_pair_prices(uint32_t edge, uint32_t v, uint32_t state, double* to) const;
  uint32_t draw_root();
  bool is_exceeded_at(uint32_t v) const;
  void change(uint32_t v, uint32_t state);
  void raise_prices();
  void sum_prices();
  uint32_t draw(uint32_t below) { return static_cast<uint32_t>((random_() >> 32) * below >> 32); }

  const CompactModel& model_;
  std::mt19937_64 random_;
  std::vector<uint32_t> states_;
  std::vector<double> conditional_;  // by state: its cost plus pairs with the neighbors' present states
  std::vector<double> excess_;       // by row: usage minus limit
  double cost_ = 0, excess_sum_ = 0, price_unit_ = 0;
  std::vector<double> prices_;   // by row
  std::vector<double> penalty_;  // by row, of exceeded rows
  double weight_ = 0;
  bool bounded_ = true;
  std::vector<bool> is_forced_;
  std::vector<uint32_t> forced_;
  std::vector<double> price_sums_;  // prefix sums of prices and penalties
  int64_t steps_ = 0;

  // Scratch data of a move, kept to avoid reallocation.
  std::vector<uint32_t> tree_, parent_, parent_edge_, frontier_, place_, touched_, adjacency_, adjacent_edge_, chosen_;
  std::vector<std::vector<double>> sums_;
  std::vector<std::vector<uint32_t>> best_;
  std::vector<double> least_, priced_row_;
  std::vector<uint32_t> next_;  // states_ with the tree's new states
  std::vector<double> change_;  // by row
};

}  // namespace shadowgraph
