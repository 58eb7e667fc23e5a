// The combinatorial problem behind automatic sharding: one strategy for each node, so that costs are least and memory
// is enough. It knows nothing of graphs, tensors or libtorch; shadowgraph/shard/problem.h makes one of a captured step,
// the IOPDDL contest has others (https://github.com/google/iopddl).
//
//     minimise    sum over nodes  times * costs[s]  +  sum over edges  times * costs[s of a][s of b]
//     so that     at each point of time, usages of what lives then (nodes by s, edges by both) <= usage_limit
//
// Costs and usages are integers, so that results are the same on every machine. Sums are 128 bits wide.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// A choice, or a pair of choices, that is not allowed.
constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Alive from `begin` to before `end`, `count` times at once. Several of a node or edge must not overlap.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count = 1;
  friend bool operator==(const LiveInterval&, const LiveInterval&) = default;
};

struct AssignmentNode {
  std::string name;                     // for people
  std::vector<std::string> strategies;  // for people: "S(0),R"; empty, or one for each cost
  std::vector<int64_t> costs;           // by strategy; at least one; kForbidden or >= 0
  std::vector<int64_t> usages;          // bytes by strategy; empty: none
  std::vector<LiveInterval> live;       // when they are used
  int64_t times = 1;                    // how many nodes of the program this one stands for: its costs count so often
  int32_t pinned = -1;                  // a strategy that it must have; below 0: free
};

// Costs of pairs, by rows: of strategy i of the one node and j of the other, costs[i * columns + j]. Edges that look
// the same share one.
struct CostMatrix {
  uint32_t rows = 0;
  uint32_t columns = 0;
  std::vector<int64_t> costs;   // kForbidden or >= 0
  std::vector<int64_t> usages;  // bytes by pair; empty: none
  int64_t at(uint32_t i, uint32_t j) const { return costs[size_t{i} * columns + j]; }
};

struct AssignmentEdge {
  uint32_t a = 0;  // nodes; the same one twice is allowed (a layer that follows one like it): its diagonal counts
  uint32_t b = 0;
  uint32_t matrix = 0;  // of AssignmentProblem::matrices; rows are strategies of a
  int64_t times = 1;
  std::vector<LiveInterval> live;  // when its usages are used
};

struct AssignmentProblem {
  std::string name;
  std::vector<AssignmentNode> nodes;
  std::vector<CostMatrix> matrices;
  std::vector<AssignmentEdge> edges;
  int64_t usage_limit = kNoLimit;

  // Throws Error that names the first node or edge that is wrong. Sizes may not fit, figures be negative, intervals
  // overlap or be empty, an index be out of range.
  void check() const;
};

// A demand that could be given up: a strategy that a node must have, or one of several. Problems have it in their
// costs. What is kept here is its name and what the costs were without it, to say which demands contradict each other.
struct AssignmentPin {
  std::string name;  // for people: "layers.*.weight=R,S(0)"
  uint32_t node = 0;
  std::vector<int64_t> costs;  // of the node, without the pin
};

struct AssignmentCost {
  __extension__ using Wide = __int128;
  bool allowed = true;  // no forbidden choice or pair
  Wide cost = 0;        // of the allowed ones
  Wide peak = 0;        // highest usage, and
  int64_t peak_at = 0;  // the first point of time when it is reached
  bool within_limit = true;
  bool feasible() const { return allowed && within_limit; }
};
// What a choice costs. Linear in problem and intervals (times a logarithm). Throws Error if `choice` does not fit.
AssignmentCost evaluate(const AssignmentProblem& problem, std::span<const uint32_t> choice);

// Solves an assignment problem (shadowgraph/shard/solver.h), and says how good the answer is.
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

enum class AssignmentSolver : uint8_t {
  kOwn,
  kHighs,         // HiGHS alone
  kOwnThenHighs,  // the own search in half of the time; what it leaves open is HiGHS'
};

constexpr auto enum_names(AssignmentSolver) { return names_in_order<AssignmentSolver>("own", "highs", "both"); }

struct SolveOptions {
  double time_limit = 60;                  // seconds, after which the best so far is given
  double gap = 0;                          // good enough: cost above the bound, relative
  int64_t table_limit = int64_t{1} << 24;  // entries of a table; more: bounds instead of minima
  int iterations = 120;                    // of the prices
  int64_t moves = 20000;                   // of the search that follows them
  size_t threads = 0;                      // 0: as many as the machine has, and one for HiGHS; the result is the same
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
  std::string stopped;  // "optimal", "gap" (it is small enough), "infeasible" (shown), "time", or "work": no more
                        // iterations and moves
  double gap() const { return cost > 0 ? static_cast<double>(cost - lower_bound) / static_cast<double>(cost) : 0; }
};

// Throws Error if the problem is none (AssignmentProblem::check), or if HiGHS is asked for and not
// found.
AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options = {});

// Assignment problems and their solutions as files.
//
//     const AssignmentProblem problem = read_assignment(read_file("V.json"));        // ours, or one of IOPDDL
//     write_file("V.lp", [&](std::ostream& out) { write_lp(problem, out); });
//
// IOPDDL (https://github.com/google/iopddl) knows one live interval a node and no counts, pins, forbidden choices or
// usages of edges. Writing keeps the optimum all the same. Costs and usages are multiplied out. Nodes with more than
// one interval and edges with usages get further nodes that are tied to them. What is not allowed costs more than all
// else together.

// Either format, by what it has. Throws ParseError with line and column of what is wrong.
AssignmentProblem read_assignment(std::string_view text);

// Throws Error if a cost that is multiplied out is too large. The first nodes are those of the problem.
void write_iopddl(const AssignmentProblem& problem, std::ostream& out);
// {"format": "shadowgraph-assignment", "version": 1, "nodes": [...], "matrices": [...], "edges": [...]}; null:
// forbidden.
void write_assignment(const AssignmentProblem& problem, std::ostream& out);
// As an integer program for other solvers, in the format of CPLEX: "x3_1" is node 3 with strategy 1.
void write_lp(const AssignmentProblem& problem, std::ostream& out);
// The same in free MPS.
void write_mps(const AssignmentProblem& problem, std::ostream& out);

enum class AssignmentFormat : uint8_t { kJson, kIopddl, kLp, kMps };
constexpr auto enum_names(AssignmentFormat) { return names_in_order<AssignmentFormat>("json", "iopddl", "lp", "mps"); }
void write_assignment(const AssignmentProblem& problem, AssignmentFormat format, std::ostream& out);

// {"format": "shadowgraph-assignment-solution", "version": 1, "choice": [...], "cost": "...", "lower_bound": "..."};
// sums are texts, since they may have more than 64 bits.
nlohmann::json to_json(const AssignmentSolution& solution);

}  // namespace shadowgraph
