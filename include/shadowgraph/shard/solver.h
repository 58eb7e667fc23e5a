// Solver of the assignment problem behind automatic sharding: chooses one strategy for each node to minimize costs
// within a memory limit. Independent of graphs, tensors and libtorch; shadowgraph/shard/problem.h creates the problem
// of a captured step, and the IOPDDL contest has others (https://github.com/google/iopddl).
//
//     minimize    sum over nodes  times * costs[s]  +  sum over edges  times * costs[s of a][s of b]
//     subject to  at each time, usages of live intervals (nodes by s, edges by both) <= usage_limit
//
// Costs and usages are integers, so that results are reproducible on all machines. Sums have 128 bits.
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

// Cost of a choice, or pair of choices, that is not allowed.
constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Live in [begin, end), `count` times at once. Intervals of a node or edge must not overlap.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count = 1;
  friend bool operator==(const LiveInterval&, const LiveInterval&) = default;
};

struct AssignmentNode {
  std::string name;                     // for display
  std::vector<std::string> strategies;  // for display: "S(0),R"; empty, or one for each cost
  std::vector<int64_t> costs;           // by strategy; at least one; kForbidden or >= 0
  std::vector<int64_t> usages;          // bytes by strategy; empty: none
  std::vector<LiveInterval> live;       // when the usage applies
  int64_t times = 1;                    // number of program nodes represented by this one, as a factor of its costs
  int32_t pinned = -1;                  // required strategy; negative: free
};

// Costs of pairs of strategies, by row: strategies i and j cost costs[i * columns + j]. May be shared by several edges.
struct CostMatrix {
  uint32_t rows = 0;
  uint32_t columns = 0;
  std::vector<int64_t> costs;   // kForbidden or >= 0
  std::vector<int64_t> usages;  // bytes by pair; empty: none
  int64_t at(uint32_t i, uint32_t j) const { return costs[size_t{i} * columns + j]; }
};

struct AssignmentEdge {
  uint32_t a = 0;  // nodes; may be the same (a layer followed by an equal one): the diagonal is used
  uint32_t b = 0;
  uint32_t matrix = 0;  // index in AssignmentProblem::matrices; rows are strategies of a
  int64_t times = 1;
  std::vector<LiveInterval> live;  // when the usage applies
};

struct AssignmentProblem {
  std::string name;
  std::vector<AssignmentNode> nodes;
  std::vector<CostMatrix> matrices;
  std::vector<AssignmentEdge> edges;
  int64_t usage_limit = kNoLimit;

  // Throws Error that names the first node or edge with invalid sizes, costs, intervals or indices.
  void check() const;
};

// A requirement that may be dropped: a strategy, or one of several, of a node. It is part of the problem's costs; this
// struct has its name and the costs without it, to report contradictory requirements.
struct AssignmentPin {
  std::string name;  // for display: "layers.*.weight=R,S(0)"
  uint32_t node = 0;
  std::vector<int64_t> costs;  // of the node, without the pin
};

struct AssignmentCost {
  __extension__ using Wide = __int128;
  bool allowed = true;  // no forbidden choice or pair
  Wide cost = 0;        // of the allowed ones
  Wide peak = 0;        // maximum usage
  int64_t peak_at = 0;  // first time at which it is reached
  bool within_limit = true;
  bool feasible() const { return allowed && within_limit; }
};
// Evaluates a choice. Linear in problem and intervals (times a logarithm). Throws Error if `choice` is invalid.
AssignmentCost evaluate(const AssignmentProblem& problem, std::span<const uint32_t> choice);

// Solves an assignment problem, with a lower bound for the cost.
//
// Reductions remove strategies that no neighbor allows and dominated ones, and merge variables determined by a
// neighbor. Without an active limit, sequential tree-reweighted message passing (Kolmogorov 2006) raises a lower bound;
// min-plus bucket elimination solves the rest (Dechter 1999; R1 and R2 of PBQP are its cases of one and two neighbors).
// Where a table would exceed `table_limit`, the bucket is split and its minimum is a bound only.
//
// With a limit, usages are priced by time (Lagrange multipliers, optimized by subgradients), and messages at these
// prices give the bound. Choices are rounded from them and improved by local search over random trees.
//
// A cost that exceeds the maximum cost of a choice without such costs is first treated as forbidden, since other
// formats have no notation for that, and allowed only if no solution is found.
//
// Results are the same on all machines and for any number of threads, unless the time limit is reached.
//
// HiGHS (https://highs.dev), an integer programming solver, can be used instead or in addition. Its library is loaded
// on request: `pip install highspy` installs it. It solves the reduced problem; bounds are lowered by its tolerances.

enum class AssignmentSolver : uint8_t {
  kBuiltin,
  kHighs,             // HiGHS only
  kBuiltinThenHighs,  // the built-in search for half of the time, then HiGHS for what it leaves open
};

constexpr auto enum_names(AssignmentSolver) { return names_in_order<AssignmentSolver>("builtin", "highs", "both"); }

struct SolveOptions {
  double time_limit = 60;                  // seconds; the best solution so far is returned then
  double gap = 0;                          // relative gap at which to stop
  int64_t table_limit = int64_t{1} << 24;  // maximum entries of a table; larger ones are replaced by bounds
  int iterations = 120;                    // of the price optimization
  int64_t moves = 20000;                   // of the local search
  size_t threads = 0;                      // 0: all cores, and one for HiGHS; does not affect the result
  std::vector<uint32_t> start;             // initial choice, used if feasible; empty: none
  AssignmentSolver solver = AssignmentSolver::kBuiltin;
  // Library of HiGHS, or its directory. "": $SHADOWGRAPH_HIGHS, or the Python package highspy next to a loaded library
  // (such as libtorch) or in $VIRTUAL_ENV, or libhighs.so in the system's search path.
  std::string highs;
  // Named requirements. If the problem is infeasible, HiGHS finds which of these contradict each other.
  std::vector<AssignmentPin> pins;
};

struct AssignmentSolution {
  using Wide = AssignmentCost::Wide;
  std::vector<uint32_t> choice;  // one strategy per node; empty if none was found
  bool feasible = false;
  bool optimal = false;  // proven
  Wide cost = 0;
  Wide lower_bound = 0;        // for all feasible choices
  Wide peak = 0;               // of usages
  int64_t peak_at = 0;         //
  std::string why_infeasible;  // "" if feasible
  std::string stopped;         // "optimal", "gap" (small enough), "infeasible", "time", or "work" (iterations, moves)
  double gap() const { return cost > 0 ? static_cast<double>(cost - lower_bound) / static_cast<double>(cost) : 0; }
};

// Throws Error if the problem is invalid (AssignmentProblem::check), or if HiGHS is requested and not found.
AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options = {});

// Assignment problems and their solutions as files.
//
// IOPDDL (https://github.com/google/iopddl) supports one live interval per node and no counts, pins, forbidden choices
// or usages of edges. Exports have the same optimum: costs and usages are multiplied by counts; nodes with several
// intervals and edges with usages are represented by additional nodes tied to them; forbidden choices cost most.

// Reads either format, detected by its contents. Throws ParseError with line and column.
AssignmentProblem read_assignment(std::string_view text);

// Throws Error if a multiplied cost is too large. The first nodes are those of the problem.
void write_iopddl(const AssignmentProblem& problem, std::ostream& out);
// {"format": "shadowgraph-assignment", "version": 1, "nodes": [..], "matrices": [..], "edges": [..]}; null: forbidden.
void write_assignment(const AssignmentProblem& problem, std::ostream& out);
// Writes an integer program in CPLEX LP format: "x3_1" is node 3 with strategy 1.
void write_lp(const AssignmentProblem& problem, std::ostream& out);
// Writes an integer program in free MPS format.
void write_mps(const AssignmentProblem& problem, std::ostream& out);

enum class AssignmentFormat : uint8_t { kJson, kIopddl, kLp, kMps };
constexpr auto enum_names(AssignmentFormat) { return names_in_order<AssignmentFormat>("json", "iopddl", "lp", "mps"); }
void write_assignment(const AssignmentProblem& problem, AssignmentFormat format, std::ostream& out);

// Returns {"format": "shadowgraph-assignment-solution", "version": 1, "choice": [...], "cost": "...",
// "lower_bound": "..."}; sums are strings, since they may exceed 64 bits.
nlohmann::json to_json(const AssignmentSolution& solution);

}  // namespace shadowgraph
