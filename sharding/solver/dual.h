// Lower bounds of a pairwise model by sequential tree-reweighted message passing (Kolmogorov 2006, 2015), with rounding
// to choices and elimination of states that cannot improve on a cutoff.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

// Moves costs between variables and pairs: the sum stays constant, and the sum of the minima rises. All amounts are
// integers, so the bound is exact.
class DualAscent {
 public:
  explicit DualAscent(const PairwiseModel& model);

  // Runs one pass over all variables, in the opposite direction of the previous one. Eliminates states for which every
  // choice costs at least `cutoff`.
  void pass(double cutoff);
  double bound() const { return bound_; }
  // Returns false once an amount was too large for doubles to represent exactly. bound() is then only a heuristic, and
  // the eliminated states are invalid.
  bool is_exact() const { return is_exact_; }
  // Returns a bound that is valid for any amounts; takes as long as a pass. Recomputed from messages, less the possible
  // rounding error.
  double certified_bound() const;
  // Replaces the costs of a variable; they must be finite integers.
  void set_unary(uint32_t v, const std::vector<double>& costs);
  // Replaces the costs of an edge's pairs; bound() is valid again after the next pass.
  void set_pairs(uint32_t e, std::vector<double> costs);
  // Returns a state for each variable from the messages of the last two passes. Variables choose in the order of the
  // next pass, each given those before it.
  std::vector<uint32_t> rounded() const;
  // Replaces the model's costs by the current ones, without eliminated states.
  void apply(PairwiseModel& model) const;
  int64_t gone_count() const { return gone_count_; }  // eliminated states

 private:
  struct Half {  // an edge as seen from one of its ends
    uint32_t edge = 0, other = 0;
    bool first = false;  // this end is `a` of the edge
  };
  static size_t message(uint32_t edge, bool to_a) { return 2 * size_t{edge} + (to_a ? 0 : 1); }

  // Returns for each edge its messages to a and to b, without the share of the end that was visited first.
  std::vector<std::vector<double>> given() const;

  const PairwiseModel& model_;
  std::vector<std::shared_ptr<const PairTable>> tables_;
  std::vector<std::vector<double>> unary_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> place_;
  std::vector<std::vector<Half>> halves_;
  std::vector<std::vector<double>> messages_;  // by message()
  std::vector<std::vector<double>> content_;   // current costs of each variable
  std::vector<std::vector<double>> share_;     // part of it that was moved into each edge ahead, since the last pass
  std::vector<double> least_;                  // of content
  std::vector<std::vector<bool>> gone_;
  int64_t gone_count_ = 0;
  bool forward_ = true;
  double bound_ = 0;
  bool is_exact_ = true;
};

// Prices on usage of a limited problem, so that a problem without a limit bounds it (Lagrange multipliers).
//
// Each point of time has a price >= 0, which a choice pays for each byte it uses there. A choice within the limit pays
// at most price_of_limit(prices, limit). So the minimum priced cost minus that price is a lower bound on every choice
// within the limit. This holds for any prices; good ones make the bound tight.
//
// limited.cpp searches for prices, and its branches inherit them. The functions round such that the bound also holds
// for exact sums. set_prices() takes time linear in the states and pairs with usages.

// Rounds prices down to multiples of a power of two, about 2^-48 of their sum. Prefix sums are then exact in doubles,
// and the price of a usage is the difference of two of them.
void round_prices(std::vector<double>& prices);

// Returns the payment of a choice that uses the whole limit at every point, rounded up.
double price_of_limit(const std::vector<double>& prices, double limit);

// Moves prices along the excess of a profile over the limit, by `length`. Returns false if none is exceeded or priced.
bool move_prices(std::vector<double>& prices, std::span<const double> profile, double limit, double length);

// Sets the dual's costs to model cost plus price times usage, rounded down. `out` marks states that a branch excludes:
// they cost `out_cost` more, since the dual takes no infinite costs. It has one list per variable (empty: none
// excluded), or is empty.
void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out = {}, double out_cost = 0);

}  // namespace shadowgraph
