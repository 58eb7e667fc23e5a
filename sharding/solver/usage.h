// Says what variables of a pairwise model use at which points of time, and what of it is used at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Keeps amounts over points of time, with the largest of them.
class UsageTree {
 public:
  explicit UsageTree(size_t points = 0);
  void add(uint32_t begin, uint32_t end, double amount);
  double highest() const { return size_ == 0 ? 0 : most_[1]; }
  uint32_t highest_at() const;
  double highest(uint32_t begin, uint32_t end) const;

 private:
  uint32_t size_ = 0;          // a power of 2
  std::vector<double> most_;   // below a node of the tree, with its own amount
  std::vector<double> added_;  // to all below it
};

struct UsageItem {
  uint32_t begin = 0;  // points
  uint32_t end = 0;
  std::vector<double> bytes;  // by state
};

// Usage of an edge's pairs, by rows of its a.
struct PairUsage {
  uint32_t begin = 0;  // points
  uint32_t end = 0;
  std::vector<double> bytes;
};

// Keeps only points of time whose live sets are part of no other one's.
class UsageModel {
 public:
  UsageModel(const AssignmentProblem& problem, const PairwiseModel& model);

  size_t points() const { return times_.size(); }
  int64_t time_of(uint32_t point) const { return times_[point]; }
  const std::vector<UsageItem>& items(uint32_t v) const { return items_[v]; }
  double limit() const { return limit_; }
  // Returns the usages of an edge's pairs.
  const std::vector<PairUsage>& pairs(uint32_t e) const { return pairs_[e]; }

  std::vector<double> profile(const PairwiseModel& model, std::span<const uint32_t> states) const;
  // Adds to `costs` what each state of a variable, and each pair of an edge, uses at prices. Prices are given as sums
  // of those before each point.
  void add_price(uint32_t v, std::span<const double> sums, std::vector<double>& costs) const;
  void add_pair_price(uint32_t e, std::span<const double> sums, std::vector<double>& costs) const;

 private:
  std::vector<int64_t> times_;
  std::vector<std::vector<UsageItem>> items_;
  std::vector<std::vector<PairUsage>> pairs_;
  double limit_ = 0;
};

}  // namespace shadowgraph
