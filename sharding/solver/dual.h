// Lower bounds of a pairwise model by sequential tree-reweighted messages (Kolmogorov 2006, 2015), with choices rounded
// from them and states that a better choice cannot have.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// What single variables and pairs hold is moved between them; the sum stays what it is, and the sum of the minima rises.
// All amounts are whole numbers, so that the bound is exact.
class DualAscent {
 public:
  explicit DualAscent(const PairwiseModel& model);

  // One pass over all variables, in the other direction than the one before. `cutoff`: states whose choices all cost that
  // or more are marked in gone().
  void pass(double cutoff);
  double bound() const { return bound_; }
  // False once an amount was so large that doubles do not hold it exactly: bound() only guides then, and gone() means
  // nothing.
  bool is_exact() const { return is_exact_; }
  // A bound whatever the amounts are: made anew from messages, less what its sums may have lost to rounding. As long as a
  // pass.
  double certified_bound() const;
  // Costs of single variables that are other ones now: whole numbers, none infinite.
  void set_unary(uint32_t v, const std::vector<double>& costs);
  // Costs of pairs that are other ones now; bound() is one again after the next pass.
  void set_pairs(uint32_t e, std::vector<double> costs);
  // One state for each variable, by the messages of the last two passes: the order of the next pass, each next to those
  // before it.
  std::vector<uint32_t> rounded() const;
  // The model with its costs as they are held now, without the states that are gone.
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

  // By edge, to a and to b: its messages, less the share of the end that was passed first, which it holds.
  std::vector<std::vector<double>> given() const;

  const PairwiseModel& model_;
  std::vector<std::shared_ptr<const PairTable>> tables_;
  std::vector<std::vector<double>> unary_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> place_;
  std::vector<std::vector<Half>> halves_;
  std::vector<std::vector<double>> messages_;
  std::vector<std::vector<double>> content_;  // what each variable holds
  std::vector<std::vector<double>> share_;    // of it in each edge ahead, since the last pass
  std::vector<double> least_;                 // of content
  std::vector<std::vector<bool>> gone_;
  int64_t gone_count_ = 0;
  bool forward_ = true;
  double bound_ = 0;
  bool is_exact_ = true;
};

}  // namespace shadowgraph
