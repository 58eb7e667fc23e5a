// Finds the least sum of a pairwise model: exactly where elimination or the dual bound shows it, else a choice and a
// bound.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shadowgraph/shard/solver.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

constexpr uint32_t kNoNode = std::numeric_limits<uint32_t>::max();

struct MinimumOptions {
  double gap = 0;                          // relative; good enough
  double cutoff = kInfinite;               // only choices below it are asked for
  int64_t table_limit = int64_t{1} << 24;  // entries of a table
  bool split = true;                       // what is too wide to eliminate is eliminated with split tables
  int passes = 2000;                       // of the dual ascent
  std::function<bool()> out_of_time;       //
};

struct Minimum {
  double bound = 0;
  double cost = kInfinite;       // of the choice, or infinite
  std::vector<uint32_t> choice;  // by node of the problem; empty: none below the cutoff was found
  bool possible = true;          // false: no choice is allowed at all
  uint32_t impossible_node = 0;  // the node that has no strategy left; kNoNode: no single one
  int passes = 0;
};

Minimum minimum_of(PairwiseModel model, const MinimumOptions& options);

// Lets one variable after another take what is best next to the others, until nothing changes.
void descend(const PairwiseModel& model, std::vector<uint32_t>& states);

// Finds the least sum of a pairwise model whose usages have a limit. Prices of usages by points of time (Lagrange
// multipliers) give bounds and choices; moves make the choices feasible and better.
struct LimitedOptions {
  double gap = 0;
  double bound = 0;                                          // known already
  int iterations = 0;                                        // of the prices
  int64_t moves = 0;                                         // of the search that follows
  size_t threads = 0;                                        // 0: as many as the machine has
  std::function<double()> time_spent;                        // of what there is: 1 ends it
  std::function<double(const std::vector<uint32_t>&)> take;  // a feasible choice; the least cost so far
  std::vector<std::vector<uint32_t>> starts;                 // choices to begin with
  double best = kInfinite;                                   // cost of the best choice so far
};

struct Limited {
  double bound = 0;
  bool possible = true;  // false: no choice keeps within the limit
};

// `model` must be a model of `problem`.
Limited search_within_limit(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options);

}  // namespace shadowgraph
