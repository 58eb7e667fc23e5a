// Finds lower bounds of a pairwise model within a limit of usages, by branch and bound.
//
// One price may lie between a choice that uses too much and one that uses too little; no prices then give a better
// bound. Each half of a variable's states does better by itself, because prices of its own raise its bound. The half
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
  // Improves a choice; also gets the prices that the choice comes from.
  std::function<void(std::span<const uint32_t> states, const std::vector<double>& prices)> polish;
};

// Returns at least `bound`, which is known. Branches begin at `prices`, which that bound comes from.
double bound_by_branches(const BranchSearch& search, double bound, const std::vector<double>& prices);

}  // namespace shadowgraph
