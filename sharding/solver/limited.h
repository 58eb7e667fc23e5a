// Finds the least sum of a pairwise model whose usages have a limit. Prices of usages by points of time (Lagrange
// multipliers) give bounds and choices; moves make the choices feasible and better.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

struct LimitedOptions {
  double gap = 0;
  double bound = 0;                                          // known already
  int iterations = 0;                                        // of the prices
  int64_t moves = 0;                                         // of the search that follows
  int threads = 1;                                           // 1 or 2
  std::function<double()> time_spent;                        // of what there is: 1 ends it
  std::function<double(const std::vector<uint32_t>&)> take;  // a feasible choice; the least cost so far
  std::vector<std::vector<uint32_t>> starts;                 // choices to begin with
  double best = kInfinite;                                   // cost of the best choice so far
};

struct Limited {
  double bound = 0;
  bool possible = true;  // false: no choice keeps within the limit
  int priced = 0;        // points with prices
};

// `model` must be a model of `problem`.
Limited search_within_limit(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options);

}  // namespace shadowgraph
