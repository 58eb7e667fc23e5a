// Solves an assignment problem (shadowgraph/sharding/assignment.h), and says how good the answer is.
//
//     const AssignmentSolution solution = solve(problem);
//     solution.choice; solution.cost; solution.lower_bound; solution.optimal;
//
// Without a limit on usages that binds, nodes are eliminated one after another (min-plus bucket elimination, of which
// the R1 and R2 reductions of PBQP are the cases of one and two neighbours; Dechter 1999). Where a table would grow beyond
// `table_limit`, a bucket is split (mini-buckets, Dechter and Rish 2003): its minimum is then a bound, the choice a good
// one, and local search follows. With a limit, usages get prices at the points of time where they are too high
// (Lagrange multipliers by subgradients); the dual value is the bound, and what is still too high is repaired by moves.
//
// One thread. The same on any machine: amounts of work end the search, the clock only as a last resort.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/sharding/assignment.h"

namespace SHADOWGRAPH_API shadowgraph {

struct SolveOptions {
  double time_limit = 60;                  // seconds, after which the best so far is given
  double gap = 0;                          // good enough: cost above the bound, relative
  int64_t table_limit = int64_t{1} << 24;  // entries of a table; more: bounds instead of minima
  int iterations = 120;                    // of the prices
  std::vector<uint32_t> start;             // a choice to begin with, if it is feasible; empty: none
};

struct AssignmentSolution {
  using Wide = AssignmentCost::Wide;
  std::vector<uint32_t> choice;  // one strategy a node; empty if none was found
  bool feasible = false;
  bool optimal = false;  // proven
  Wide cost = 0;
  Wide lower_bound = 0;        // of all feasible choices
  Wide peak = 0;               // of usages
  int64_t peak_at = 0;         //
  std::string why_infeasible;  // "" if feasible
  int64_t largest_table = 0;   // entries
  int priced = 0;              // points of time that got prices
  double gap() const { return cost > 0 ? static_cast<double>(cost - lower_bound) / static_cast<double>(cost) : 0; }
};

// Throws Error if the problem is none (AssignmentProblem::check).
AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options = {});

}  // namespace shadowgraph
