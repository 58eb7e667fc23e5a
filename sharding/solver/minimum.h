// Minimum of a pairwise model: exact if elimination or the dual bound proves it, else a choice and a bound.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shadowgraph/shard/solver.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

constexpr uint32_t kNoNode = std::numeric_limits<uint32_t>::max();

struct MinimumOptions {
  double gap = 0;                          // relative gap at which to stop
  double cutoff = kInfinite;               // only choices below it are of interest
  int64_t table_limit = int64_t{1} << 24;  // entries of a table
  bool split = true;                       // split tables that are too large
  int passes = 2000;                       // of the dual ascent
  std::function<bool()> out_of_time;       // checked between passes
};

struct Minimum {
  double bound = 0;
  double cost = kInfinite;       // of the choice; infinite without one
  std::vector<uint32_t> choice;  // by node of the problem; empty if none below the cutoff was found
  bool possible = true;          // false: proven infeasible
  uint32_t impossible_node = 0;  // the node without a feasible strategy; kNoNode if not a single one
  int passes = 0;
};

Minimum minimum_of(PairwiseModel model, const MinimumOptions& options);

// Coordinate descent: sets one variable after another to its best state given the others, until nothing changes.
void descend(const PairwiseModel& model, std::vector<uint32_t>& states);

// Minimizes a pairwise model with a usage limit. Prices on usage by point of time (Lagrange multipliers) give bounds
// and choices; local search makes the choices feasible and improves them.
struct LimitedOptions {
  double gap = 0;
  double bound = 0;                                          // lower bound already known
  int iterations = 0;                                        // of the prices
  int64_t moves = 0;                                         // of the local search that follows
  size_t threads = 0;                                        // 0: as many as the machine has
  std::function<double()> time_spent;                        // fraction of the time limit; stops at 1
  std::function<double(const std::vector<uint32_t>&)> take;  // receives a feasible choice; returns the best cost so far
  std::vector<std::vector<uint32_t>> starts;                 // initial choices
  double best = kInfinite;                                   // cost of the best choice so far
};

struct Limited {
  double bound = 0;
  bool possible = true;  // false: proven infeasible
};

// `model` must be a model of `problem`.
Limited search_within_limit(const AssignmentProblem& problem, PairwiseModel model, const LimitedOptions& options);

}  // namespace shadowgraph
