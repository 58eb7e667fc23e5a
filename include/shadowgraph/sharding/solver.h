// Solves an assignment problem (shadowgraph/sharding/assignment.h), and says how good the answer is.
//
//     const AssignmentSolution solution = solve(problem);
//     solution.choice; solution.cost; solution.lower_bound; solution.optimal;
//
// States that no neighbour allows go, variables that follow from a neighbour become part of it, and dominated states
// go. Without a limit that binds, sequential tree-reweighted messages (Kolmogorov 2006) raise a lower bound until
// little is left. Min-plus bucket elimination solves the rest (Dechter 1999; R1 and R2 of PBQP are its cases of one and
// two neighbours). Where a table would grow beyond `table_limit`, a bucket is split: its minimum is then a bound.
//
// With a limit, usages get prices by points of time (Lagrange multipliers by subgradients), and messages at these
// prices give the bound. Choices are rounded from messages. Local search makes them feasible and better; its moves
// choose the states of random trees of variables anew, all at once.
//
// A cost may be more than the dearest choice without such costs, for other formats say "forbidden" so. It is forbidden
// first, and allowed only if nothing is found.
//
// The same on any machine and for any number of threads, unless the time limit is what ends it.
//
// HiGHS (https://highs.dev), an integer-programming solver, can be asked instead, or for what the own search leaves
// open. It is a library that is opened when it is asked for: `pip install highspy` brings it. What is left after
// reductions goes to it, within its tolerances: bounds are lowered by what those may be wrong by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/sharding/assignment.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class AssignmentSolver : uint8_t {
  kOwn,
  kHighs,         // HiGHS alone
  kOwnThenHighs,  // the own search in half of the time; what it leaves open is HiGHS'
};

// "own", "highs", "both". Throws Error for another name.
AssignmentSolver assignment_solver(std::string_view name);

// A solver's library is asked for and is not there. what() says where it was looked for.
class SolverMissingError : public Error {
 public:
  using Error::Error;
};

struct SolveOptions {
  double time_limit = 60;                  // seconds, after which the best so far is given
  double gap = 0;                          // good enough: cost above the bound, relative
  int64_t table_limit = int64_t{1} << 24;  // entries of a table; more: bounds instead of minima
  int iterations = 120;                    // of the prices
  int64_t moves = 20000;                   // of the search that follows them
  int threads = 1;                         // 1 or 2; the result is the same
  std::vector<uint32_t> start;             // a choice to begin with, if it is feasible; empty: none
  AssignmentSolver solver = AssignmentSolver::kOwn;
  // HiGHS' library or its folder. Empty: $SHADOWGRAPH_HIGHS, else the Python package highspy beside a library that is
  // loaded (as libtorch's) or in $VIRTUAL_ENV, else libhighs.so where the system looks.
  std::string highs;
  // What of the problem has names. Where nothing fits, HiGHS says which of these contradict each other, or the limit.
  std::vector<AssignmentPin> pins;
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
  std::string stopped;        // "optimal", "gap" (it is small enough), "infeasible" (shown), "time", or "work": no more
                              // iterations and moves
  int64_t largest_table = 0;  // entries
  int priced = 0;             // points of time that got prices
  double gap() const { return cost > 0 ? static_cast<double>(cost - lower_bound) / static_cast<double>(cost) : 0; }
};

// Throws Error if the problem is none (AssignmentProblem::check), SolverMissingError if HiGHS is asked for and not
// found.
AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options = {});

}  // namespace shadowgraph
