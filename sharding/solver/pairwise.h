// Compiles a function for AVX2 too; the dynamic loader selects the variant. Sums consist of single products and
// integers, so results are equal on all machines.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shadowgraph/shard/solver.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHADOWGRAPH_SOLVER_LOOPS __attribute__((target_clones("avx2", "default")))
#else
#define SHADOWGRAPH_SOLVER_LOOPS
#endif

// A sum of costs of variables and pairs, the solver's internal form: no limits, no pins, all states feasible.
// Reductions preserve the minimum, and record how states of the problem follow from those that are left.
namespace shadowgraph {

// Costs are integers in doubles, exact below 2^53; forbidden ones are infinite.
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The allowed entries of a sparse table, by row.
struct AllowedPairs {
  std::vector<uint32_t> begin;  // by row, plus one; empty if the table is dense
  std::vector<uint32_t> column;
  std::vector<double> cost;
};

struct PairTable {
  uint32_t rows = 0, columns = 0;
  std::vector<double> costs{};       // row-major
  std::vector<double> transposed{};  // column-major: tables are read in both directions
  AllowedPairs allowed{};            // row-major
  AllowedPairs allowed_transposed{};
  double at(uint32_t i, uint32_t j) const { return costs[size_t{i} * columns + j]; }
};

// Computes the other members from `costs`.
std::shared_ptr<const PairTable> completed(PairTable table);

class PairwiseModel {
 public:
  struct Edge {
    uint32_t a = 0, b = 0;
    std::shared_ptr<const PairTable> table;  // rows are states of a; nullptr for a removed edge
    uint32_t other(uint32_t v) const { return a == v ? b : a; }
    // Returns the index of the pair of a state of v and one of the other end.
    size_t at(uint32_t v, uint32_t state, uint32_t of_other) const {
      return a == v ? size_t{state} * table->columns + of_other : size_t{of_other} * table->columns + state;
    }
    // Returns the costs for a state of v, contiguous over the states of the other end.
    const double* row(uint32_t v, uint32_t state) const {
      return a == v ? table->costs.data() + size_t{state} * table->columns
                    : table->transposed.data() + size_t{state} * table->rows;
    }
  };

  // A node of the problem that is determined by a variable.
  struct Member {
    uint32_t node = 0;
    std::vector<uint32_t> strategy{};  // by state
  };

  // Takes a problem's node costs, multiplied out, by node and strategy. Edges are added with add_edge().
  explicit PairwiseModel(std::vector<std::vector<double>> unary);
  void add_edge(uint32_t a, uint32_t b, PairTable table);

  size_t size() const { return unary_.size(); }
  const std::vector<double>& unary(uint32_t v) const { return unary_[v]; }
  uint32_t states(uint32_t v) const { return static_cast<uint32_t>(unary_[v].size()); }
  const std::vector<Member>& members(uint32_t v) const { return members_[v]; }
  bool is_left(uint32_t v) const { return left_[v]; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<uint32_t>& edges_of(uint32_t v) const { return edges_of_[v]; }
  bool is_possible() const { return possible_; }
  // Returns the node of the problem that lost its last state, if the model is infeasible.
  uint32_t impossible_node() const { return impossible_node_; }
  int64_t entries() const;  // total size of all tables

  // Drops the states marked in `gone`. Returns true if there are any.
  bool drop(uint32_t v, const std::vector<bool>& gone);
  // Drops infinite states and states incompatible with all states of a neighbor, to a fixpoint. is_possible() is false
  // if a variable loses all its states.
  void propagate();
  // Merges variables whose state is determined by a neighbor into that neighbor. Returns true if anything changed.
  bool merge_functional();
  // Drops states dominated by another one of the variable; `may(v, better, state)` can veto. Returns true on a change.
  using MayReplace = std::function<bool(uint32_t, uint32_t, uint32_t)>;
  bool drop_dominated(uint32_t candidates, const MayReplace& may = nullptr);

  // Moves costs from pairs to variables; all sums stay the same. `unary` is by variable; `from_edges` are the amounts
  // taken from each edge's table, by state of a and of b.
  void reparametrize(std::vector<std::vector<double>> unary, const std::vector<std::vector<double>>& from_edges);
  // Log2 of the table entries visited by variable elimination, in total and in the largest table.
  struct Width {
    double total = 0, largest = 0;
  };
  Width width() const;

  // Returns a strategy for each node of the problem, given a state for each remaining variable.
  std::vector<uint32_t> choice(std::span<const uint32_t> states) const;
  // Returns the states that correspond to a choice; empty if one of them has been dropped.
  std::vector<uint32_t> states_of(std::span<const uint32_t> choice) const;
  double cost(std::span<const uint32_t> states) const;

 private:
  void merge(uint32_t from, uint32_t into, const std::vector<uint32_t>& state_of);
  void drop_edge(uint32_t e);

  std::vector<std::vector<double>> unary_;
  std::vector<bool> left_;
  std::vector<Edge> edges_;
  std::vector<std::vector<uint32_t>> edges_of_;
  std::vector<std::vector<Member>> members_;
  size_t nodes_ = 0;
  bool possible_ = true;
  uint32_t impossible_node_ = 0;
};

// Builds the model of a problem, without its limit but with its pins. Costs above 2^45 are clamped to 2^45: bounds stay
// valid, sums exact in doubles; choices are compared with evaluate().
PairwiseModel pairwise_model(const AssignmentProblem& problem);

// Forbids costs that each exceed any choice without such costs; formats that cannot express forbidden entries use such
// costs instead. Returns nullopt if there are none.
std::optional<AssignmentProblem> without_costs_above_all(const AssignmentProblem& problem);

// Drops states that no neighbor is compatible with, that are dominated in cost and usage, and (`within_limit`) that
// exceed the limit when all others use their minimum. Merges variables determined by a neighbor into it. Without
// `within_limit`, preserves the best trade-offs of cost and usage. Returns false if the model is infeasible.
bool simplify(const AssignmentProblem& problem, PairwiseModel& model, bool within_limit);

}  // namespace shadowgraph
