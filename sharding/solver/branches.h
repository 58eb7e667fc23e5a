// Lower bounds of a pairwise model within a limit of usages by branch and bound.
//
// Where one price lies between a choice that uses too much and one that uses too little, no prices give a better
// bound. Halves of the states of a variable do, each by itself: its bound is raised by prices of its own, and the half
// with the least bound is split next.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

struct BranchSearch {
  const PairwiseModel& model;
  const UsageModel& usage;
  int iterations = 0;                         // branches
  std::function<double()> best;               // cost of the best choice known
  std::function<bool(double bound)> is_over;  // good enough, or out of time
  std::function<bool()> is_out_of_time;
  // A choice to make better, and the prices that it is from.
  std::function<void(std::span<const uint32_t> states, const std::vector<double>& prices)> polish;
};

// At least `bound`, which is known; `prices`, those that it is from, are where branches begin.
double bound_by_branches(const BranchSearch& search, double bound, const std::vector<double>& prices);

}  // namespace shadowgraph
