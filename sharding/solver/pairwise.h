// Compiles functions for wider vectors too; the library takes the machine's when it is loaded. Sums are of single
// products and whole amounts, so they are the same on every machine.
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

// A sum of costs of single variables and of pairs, as the solver works with it: without limits, without pins, every
// state possible. Reductions keep the minimum, and how states of the problem follow from what is left.
namespace shadowgraph {

// Costs are whole numbers in doubles, exact below 2^53; what is not allowed is infinite.
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The allowed entries of a table, by rows of one end, where they are few.
struct AllowedPairs {
  std::vector<uint32_t> begin;  // by row, and one more; empty: not kept
  std::vector<uint32_t> column;
  std::vector<double> cost;
};

struct PairTable {
  uint32_t rows = 0;
  uint32_t columns = 0;
  std::vector<double> costs{};       // rows first
  std::vector<double> transposed{};  // columns first: both directions are walked along
  AllowedPairs allowed{};            // rows first
  AllowedPairs allowed_transposed{};
  double at(uint32_t i, uint32_t j) const { return costs[size_t{i} * columns + j]; }
};

// Fills in what follows from `costs`.
void complete(PairTable& table);

class PairwiseModel {
 public:
  struct Edge {
    uint32_t a = 0;
    uint32_t b = 0;
    std::shared_ptr<const PairTable> table;  // rows are states of a; empty: the edge is gone
  };

  // A node of the problem that a variable decides over.
  struct Member {
    uint32_t node = 0;
    std::vector<uint32_t> strategy{};  // by state
  };

  // Takes the costs of a problem, multiplied out: `unary` by node and strategy. Matrices of edges come with add_edge.
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
  // Returns the node of the problem that lost its last state, if the model is not possible.
  uint32_t impossible_node() const { return impossible_node_; }
  int64_t entries() const;  // of all tables

  // Drops states that are not in `keep` (ascending).
  void restrict_to(uint32_t v, const std::vector<uint32_t>& keep);
  // Drops infinite states and states that have no partner at a neighbour, until there are none. is_possible() is false
  // if a variable loses all.
  void propagate();
  // Merges variables that follow from a neighbour's state into that neighbour. True if anything changed.
  bool merge_functional();
  // Drops states that another one of the same variable is never worse than; `may(v, better, state)` can forbid it. True
  // if anything changed.
  using MayReplace = std::function<bool(uint32_t, uint32_t, uint32_t)>;
  bool drop_dominated(uint32_t candidates, const MayReplace& may = nullptr);

  // Moves costs from pairs to variables; all sums stay. `unary` is by variable; each edge's table gives up the amounts
  // in `from_edges`, by state of a and of b.
  void reparametrize(std::vector<std::vector<double>> unary, const std::vector<std::vector<double>>& from_edges);
  // Log2 of the entries that eliminating variables one after another would look at, in all and in its largest table.
  struct Width {
    double total = 0;
    double largest = 0;
  };
  Width width() const;

  // Returns a strategy for each node of the problem, from one state for each variable that is left.
  std::vector<uint32_t> choice(std::span<const uint32_t> states) const;
  // Returns one state for each variable from a choice; nothing if states that it needs were dropped.
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

// Leaves the limit out and takes the pins in. Costs of more than 2^45 count as 2^45: bounds stay bounds, sums stay
// exact in doubles, and choices are weighed by evaluate().
PairwiseModel pairwise_model(const AssignmentProblem& problem);

// Forbids costs that are each more than the dearest choice without such costs. Formats without a word for what is
// forbidden write such costs instead. Returns nothing if there are none.
std::optional<AssignmentProblem> without_costs_above_all(const AssignmentProblem& problem);

// Drops what no neighbour allows, what uses more than the limit leaves when all others use their least, and what is
// never better. A state is never better if another one costs and uses no more. Variables that follow from a neighbour
// become part of it. Returns false if nothing is left.
bool simplify_within_limit(const AssignmentProblem& problem, PairwiseModel& model);
// Does the same without what a limit alone forbids: whatever the limit is, no better choice of costs and usages is
// lost.
bool simplify_for_any_limit(const AssignmentProblem& problem, PairwiseModel& model);

}  // namespace shadowgraph
