// Choices that stay below a limit of usages, made better by moves: single variables, and trees of variables at once, each
// the best for its prices by dynamic programming.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

class LocalSearch {
 public:
  LocalSearch(const PairwiseModel& model, const UsageModel& usage, uint64_t seed);

  void load(std::span<const uint32_t> states);
  const std::vector<uint32_t>& states() const { return states_; }
  double cost() const { return cost_; }
  double highest() const { return tree_.highest(); }
  bool is_feasible() const { return cost_ < kInfinite && tree_.highest() <= usage_.limit(); }

  // Prices by point, for moves of trees.
  void set_prices(std::span<const double> prices);
  // Lowers what is above the limit, as cheaply as it can. True if nothing is any more.
  bool repair(int trees);
  // Single moves that cost less and stay below the limit, until there are none.
  void descend();
  // `count` moves of trees of up to `size` variables; kept if the choice is feasible and costs less.
  void move_trees(int count, uint32_t size);

 private:
  void costs_of(uint32_t v, std::vector<double>& costs) const;  // of states next to the others as they are
  void set(uint32_t v, uint32_t state);
  // The best for a tree around `root`, at prices times `scale`; what was there before.
  std::vector<std::pair<uint32_t, uint32_t>> move_tree(uint32_t root, uint32_t size, double scale);
  bool lower_highest();
  uint32_t random_variable();

  const PairwiseModel& model_;
  const UsageModel& usage_;
  std::mt19937_64 random_;
  std::vector<uint32_t> variables_;
  std::vector<uint32_t> states_;
  double cost_ = 0;
  UsageTree tree_;
  std::vector<double> prices_;
  std::vector<double> sums_;     // of prices before each point
  std::vector<uint32_t> stamp_;  // of the tree that a variable is in
  uint32_t stamps_ = 0;
  double scale_ = 1;
};

}  // namespace shadowgraph
