#include "sharding/solver/highs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "sharding/solver/compact_model.h"
#include "sharding/solver/problem_model.h"
#include "sharding/solver/simplify.h"

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// HiGHS does best with figures up to about a million; it tolerates 10^-7 of a cost and 10^-6 of a row.
constexpr double kLargest = 0x1p20;
constexpr double kCostTolerance = 1e-7;
constexpr double kRelativeTolerance = 1e-9;

// Returns the factor, a power of 2, that brings an amount to at most kLargest.
double unit_of(double amount) {
  int exponent = 0;
  std::frexp(amount / kLargest, &exponent);
  return amount > 0 ? std::ldexp(1.0, -exponent) : 1;
}

enum class Aim : uint8_t { kLeastCost, kAny, kLeastLimit };

// Has a column for each state, then one for each pair that is allowed, then the limit itself where that is asked for.
// Sums of pairs are states (the local polytope).
class CoreProgram {
 public:
  CoreProgram(const AssignmentProblem& problem, Aim aim)
      : aim_(aim), model_(pairwise_model(problem)), possible_(simplify(problem)) {
    if (!possible_) return;
    AssignmentProblem unlimited;
    const AssignmentProblem* usages = &problem;
    if (aim_ == Aim::kLeastLimit) {
      unlimited = problem;
      unlimited.usage_limit = 0;  // all points have a row
      usages = &unlimited;
    }
    compact_.emplace(model_, UsageModel(*usages, model_));
    cost_unit_ = unit_of(largest_cost());
    double most_bytes = static_cast<double>(usages->usage_limit);
    for (const double bytes : compact_->bytes) most_bytes = std::max(most_bytes, bytes);
    byte_unit_ = unit_of(most_bytes);
    add_states();
    add_pairs();
    if (aim_ == Aim::kLeastLimit) limit_column_ = program_.add_column(1, 0, kUnbounded, false);
    add_limits();
  }

  bool is_possible() const { return possible_; }
  const HighsProgram& program() const { return program_; }

  HighsAnswer solve(const HighsRequest& request) const {
    if (program_.cost.empty()) {  // nothing is left to choose
      const bool fits = std::ranges::all_of(compact_->row_limit, [](double left) { return left >= 0; });
      return {.status = fits ? HighsStatus::kOptimal : HighsStatus::kInfeasible, .found = fits};
    }
    HighsOptions options{.time_limit = request.time_limit, .gap = request.gap, .threads = request.threads};
    // Costs are whole, so a gap below one of them is none.
    if (aim_ == Aim::kLeastCost) options.absolute_gap = 0.5 * cost_unit_;
    const std::vector<uint32_t> states =
        request.start.empty() ? std::vector<uint32_t>() : model_.states_of(request.start);
    if (!states.empty()) {
      const std::vector<uint32_t> chosen = compact_->compact(states);
      for (uint32_t v = 0; v < compact_->size(); ++v) {
        for (uint32_t s = 0; s < compact_->states(v); ++s) {
          options.start_columns.push_back(static_cast<int32_t>(compact_->first[v] + s));
          options.start_values.push_back(chosen[v] == s ? 1 : 0);
        }
      }
    }
    return request.library.solve(program_, options);
  }

  // Turns HiGHS' bound of the program into a bound of what was asked for.
  Wide bound_of(double bound) const {
    if (!(bound > -kUnbounded)) return 0;
    const double unit = aim_ == Aim::kLeastLimit ? byte_unit_ : cost_unit_;
    const double parts = static_cast<double>(compact_->size() + compact_->edges.size() + 1);
    const double whole = bound / unit + (aim_ == Aim::kLeastLimit ? 0 : compact_->constant);
    const double wrong = kCostTolerance * parts / unit + kRelativeTolerance * std::abs(whole);
    return static_cast<Wide>(std::max(0.0, std::ceil(whole - wrong)));
  }

  std::vector<uint32_t> choice_of(const std::vector<double>& values) const {
    std::vector<uint32_t> states;
    for (uint32_t v = 0; v < compact_->size(); ++v) {
      const auto begin = values.begin() + compact_->first[v];
      states.push_back(static_cast<uint32_t>(std::max_element(begin, begin + compact_->states(v)) - begin));
    }
    return model_.choice(compact_->expanded(states, model_.size()));
  }

 private:
  bool simplify(const AssignmentProblem& problem) {
    return aim_ == Aim::kLeastLimit ? simplify_for_any_limit(problem, model_) : simplify_within_limit(problem, model_);
  }

  double largest_cost() const {
    double largest = 0;
    const auto look = [&](double cost) {
      if (cost < CompactModel::kForbiddenCost) largest = std::max(largest, cost);
    };
    for (const double cost : compact_->cost) look(cost);
    for (const double cost : compact_->pairs) look(cost);
    return largest;
  }

  double cost_of(double cost) const { return aim_ == Aim::kLeastCost ? cost * cost_unit_ : 0; }

  void add_states() {
    for (const double cost : compact_->cost) program_.add_column(cost_of(cost), 0, 1, true);
    for (uint32_t v = 0; v < compact_->size(); ++v) {
      program_.add_row(1, 1);
      for (uint32_t s = compact_->first[v]; s < compact_->first[v + 1]; ++s) {
        program_.add_term(static_cast<int32_t>(s), 1);
      }
    }
  }

  void add_pairs() {
    for (const CompactModel::Edge& edge : compact_->edges) {
      const uint32_t rows = compact_->states(edge.a);
      const uint32_t columns = compact_->states(edge.b);
      const double* costs = compact_->pairs.data() + edge.rows_of_a;
      std::vector<int32_t>& pairs = pairs_.emplace_back(size_t{rows} * columns, -1);
      for (size_t i = 0; i < pairs.size(); ++i) {
        if (costs[i] < CompactModel::kForbiddenCost) pairs[i] = program_.add_column(cost_of(costs[i]), 0, 1, false);
      }
      const auto add_row = [&](uint32_t state, uint32_t first, uint32_t count, uint32_t step) {
        program_.add_row(0, 0);
        program_.add_term(static_cast<int32_t>(state), -1);
        for (uint32_t k = 0; k < count; ++k) {
          if (pairs[first + k * step] >= 0) program_.add_term(pairs[first + k * step], 1);
        }
      };
      for (uint32_t i = 0; i < rows; ++i) add_row(compact_->first[edge.a] + i, i * columns, columns, 1);
      for (uint32_t j = 0; j < columns; ++j) add_row(compact_->first[edge.b] + j, j, rows, columns);
    }
  }

  // Adds a row for each point that can be exceeded. Columns of bytes go by the rows where they begin and end.
  void add_limits() {
    struct Term {
      uint32_t begin = 0, end = 0;
      int32_t column = 0;
      double bytes = 0;
    };
    std::vector<Term> terms;
    const auto add = [&](const CompactModel::Item& item, size_t count, const auto& column_of) {
      for (size_t i = 0; i < count; ++i) {
        const double bytes = compact_->bytes[item.bytes + i];
        const int32_t column = column_of(i);
        if (bytes > 0 && column >= 0) terms.push_back({item.begin, item.end, column, bytes * byte_unit_});
      }
    };
    for (uint32_t v = 0; v < compact_->size(); ++v) {
      for (uint32_t k = compact_->item_first[v]; k < compact_->item_first[v + 1]; ++k) {
        add(compact_->items[k], compact_->states(v),
            [&](size_t s) { return static_cast<int32_t>(compact_->first[v] + s); });
      }
    }
    for (uint32_t e = 0; e < compact_->edges.size(); ++e) {
      for (uint32_t k = compact_->pair_first[e]; k < compact_->pair_first[e + 1]; ++k) {
        add(compact_->pair_items[k], pairs_[e].size(), [&](size_t i) { return pairs_[e][i]; });
      }
    }
    std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.begin < b.begin; });
    std::vector<Term> alive;
    size_t next = 0;
    std::vector<double> sums(program_.cost.size(), 0);
    for (uint32_t row = 0; row < compact_->rows(); ++row) {
      std::erase_if(alive, [&](const Term& term) { return term.end <= row; });
      for (; next < terms.size() && terms[next].begin <= row; ++next) {
        if (terms[next].end > row) alive.push_back(terms[next]);
      }
      for (const Term& term : alive) sums[static_cast<size_t>(term.column)] += term.bytes;
      program_.add_row(-kUnbounded, compact_->row_limit[row] * byte_unit_);
      for (const Term& term : alive) {
        double& sum = sums[static_cast<size_t>(term.column)];
        if (sum > 0) program_.add_term(term.column, sum);
        sum = 0;
      }
      if (limit_column_ >= 0) program_.add_term(limit_column_, -1);
    }
  }

  const Aim aim_;
  PairwiseModel model_;
  const bool possible_;
  std::optional<CompactModel> compact_;
  double cost_unit_ = 1;  // of the program, for a cost of 1
  double byte_unit_ = 1;
  HighsProgram program_;
  std::vector<std::vector<int32_t>> pairs_;  // columns by edge and pair; -1: not allowed
  int32_t limit_column_ = -1;
};

// What is possible does not depend on costs.
AssignmentProblem without_costs(AssignmentProblem problem) {
  const auto clear = [](std::vector<int64_t>& costs) {
    for (int64_t& cost : costs) cost = cost == kForbidden ? kForbidden : 0;
  };
  for (AssignmentNode& node : problem.nodes) clear(node.costs);
  for (CostMatrix& matrix : problem.matrices) clear(matrix.costs);
  return problem;
}

}  // namespace

HighsMinimum minimum_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  HighsMinimum result;
  const CoreProgram core(problem, Aim::kLeastCost);
  if (!core.is_possible()) {
    result.possible = false;
    return result;
  }
  const HighsAnswer answer = core.solve(request);
  if (answer.status == HighsStatus::kInfeasible) {
    result.possible = false;
    return result;
  }
  result.bound = core.bound_of(answer.bound);
  if (answer.found) result.choice = core.choice_of(answer.values);
  return result;
}

std::optional<bool> is_possible_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  const AssignmentProblem free = without_costs(problem);
  const CoreProgram core(free, Aim::kAny);
  if (!core.is_possible()) return false;
  const HighsAnswer answer = core.solve(request);
  if (answer.status == HighsStatus::kInfeasible) return false;
  if (answer.found && evaluate(free, core.choice_of(answer.values)).feasible()) return true;
  return std::nullopt;
}

LeastLimit least_limit_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  LeastLimit least;
  AssignmentProblem free = without_costs(problem);
  free.usage_limit = kNoLimit;
  const CoreProgram core(free, Aim::kLeastLimit);
  if (!core.is_possible()) return least;
  const HighsAnswer answer = core.solve(request);
  least.bound = core.bound_of(answer.bound);
  if (!answer.found) return least;
  std::vector<uint32_t> choice = core.choice_of(answer.values);
  const AssignmentCost cost = evaluate(free, choice);
  if (!cost.allowed) return least;
  least.choice = std::move(choice);
  least.usage = cost.peak;
  least.bound = std::min(least.bound, least.usage);
  return least;
}

}  // namespace shadowgraph
