// Searches from choice to better choice. A move chooses the states of a random tree-shaped set of variables anew, all
// at once, by dynamic programming over costs and prices of usages. It is taken if nothing then uses more above the
// limit.
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
  // Sets prices by row; they count `weight` times.
  void set_prices(std::span<const double> prices, double weight);
  // Unless bounded, moves may use more than the limit: only prices are against it.
  void set_bounded(bool bounded) { bounded_ = bounded; }
  // Puts some random variables into random states and keeps them there until they are released.
  void force(int count);
  void release();
  // Makes one move. While bounded, it never raises excess(), unless that removes a forbidden pair.
  void step();

  const std::vector<uint32_t>& states() const { return states_; }
  double cost() const { return cost_ + model_.constant; }
  double excess() const { return excess_sum_; }  // above limits, over all rows
  bool is_allowed() const { return cost_ < CompactModel::kForbiddenCost; }
  bool is_feasible() const { return excess_sum_ == 0 && is_allowed(); }

 private:
  void grow(uint32_t root, uint32_t size);
  void optimise_tree();
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
  std::vector<double> conditional_;  // by state: its cost and that of pairs with the neighbours as they are
  std::vector<double> excess_;       // by row: usage less limit
  double cost_ = 0;
  double excess_sum_ = 0;
  double price_unit_ = 0;
  std::vector<double> prices_;   // by row
  std::vector<double> penalty_;  // by row, of what is exceeded
  double weight_ = 0;
  bool bounded_ = true;
  std::vector<bool> is_forced_;
  std::vector<uint32_t> forced_;
  std::vector<double> price_sums_;  // of both, before each row
  int64_t steps_ = 0;

  // These are the state of one move, kept so that memory is not allocated anew.
  std::vector<uint32_t> tree_, parent_, parent_edge_, frontier_, place_, touched_, adjacency_, adjacent_edge_, chosen_;
  std::vector<std::vector<double>> sums_;
  std::vector<std::vector<uint32_t>> best_;
  std::vector<double> least_, priced_row_;
  std::vector<uint32_t> next_;  // states with those of the tree; otherwise as states_
  std::vector<double> change_;  // by row
};

}  // namespace shadowgraph
