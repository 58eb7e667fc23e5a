// Finds lower bounds of a pairwise model by sequential tree-reweighted messages (Kolmogorov 2006, 2015). It also rounds
// choices from them and marks states that a better choice cannot have.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

// Moves costs between single variables and pairs: their sum stays what it is, and the sum of their minima rises. All
// amounts are whole numbers, so the bound is exact.
class DualAscent {
 public:
  explicit DualAscent(const PairwiseModel& model);

  // Makes one pass over all variables, in the other direction than the last one. A state whose choices all cost
  // `cutoff` or more is marked in gone().
  void pass(double cutoff);
  double bound() const { return bound_; }
  // Returns false once an amount was too large for doubles to hold exactly. bound() then only guides, and gone() means
  // nothing.
  bool is_exact() const { return is_exact_; }
  // Returns a bound that holds whatever the amounts are, as long as a pass takes. It is made anew from messages, less
  // what sums may have lost to rounding.
  double certified_bound() const;
  // Replaces the costs of a variable: whole numbers, none infinite.
  void set_unary(uint32_t v, const std::vector<double>& costs);
  // Replaces the costs of an edge's pairs; bound() is a bound again after the next pass.
  void set_pairs(uint32_t e, std::vector<double> costs);
  // Returns one state for each variable, by the messages of the last two passes. Variables choose in the order of the
  // next pass, each next to those before it.
  std::vector<uint32_t> rounded() const;
  // Gives the model the costs that are held now, without the states that are gone.
  void apply(PairwiseModel& model) const;
  const std::vector<std::vector<bool>>& gone() const { return gone_; }
  int64_t gone_count() const { return gone_count_; }

 private:
  struct Half {  // an edge from one of its ends
    uint32_t edge = 0;
    uint32_t other = 0;
    bool first = false;  // this end is the edge's a
  };
  std::vector<double>& message(uint32_t edge, bool to_a) { return messages_[2 * edge + (to_a ? 0 : 1)]; }
  const std::vector<double>& message(uint32_t edge, bool to_a) const { return messages_[2 * edge + (to_a ? 0 : 1)]; }

  // Returns for each edge its messages to a and to b, without the share that it holds of the end that was passed first.
  std::vector<std::vector<double>> given() const;

  const PairwiseModel& model_;
  std::vector<std::shared_ptr<const PairTable>> tables_;
  std::vector<std::vector<double>> unary_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> place_;
  std::vector<std::vector<Half>> halves_;
  std::vector<std::vector<double>> messages_;
  std::vector<std::vector<double>> content_;  // what each variable holds
  std::vector<std::vector<double>> share_;    // the part of it that went into each edge ahead, since the last pass
  std::vector<double> least_;                 // of content
  std::vector<std::vector<bool>> gone_;
  int64_t gone_count_ = 0;
  bool forward_ = true;
  double bound_ = 0;
  bool is_exact_ = true;
};

// Gives the bytes of a limited problem a price, so that a problem without a limit bounds it (Lagrange multipliers).
//
// Each point of time has a price, 0 or above, and a choice pays it for each byte that it uses there. A choice that
// keeps within the limit pays at most worth_of(prices, limit). So the least priced cost, less that worth, is at or
// below the cost of every choice that keeps within. This holds for any prices; good ones make the bound high.
//
// limited.cpp searches for prices, and branches.cpp takes them over. The functions round such that the bound holds for
// exact sums, too. set_prices() takes time linear in the states and pairs that use anything.

// Rounds prices down to multiples of a power of two, about 2^-48 of their sum. Sums of stretches are then exact in
// doubles, and a usage's price is the difference of two of them.
void round_prices(std::vector<double>& prices);

// Returns what a choice pays that uses all of the limit at every point, rounded up.
double worth_of(const std::vector<double>& prices, double limit);

// Moves prices by what a profile exceeds the limit, `length` in all. Returns false where nothing is exceeded or priced.
bool move_prices(std::vector<double>& prices, std::span<const double> profile, double limit, double length);

// Sets the dual's costs to model cost plus price times usage, rounded down. `out` marks states that a branch rules
// out: they cost `out_cost` more, since the dual takes no infinite costs. It has one list for each variable (empty:
// none of its states), or none at all.
void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out = {}, double out_cost = 0);

}  // namespace shadowgraph
