#include "sharding/solver/highs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "shadowgraph/units.h"
#include "sharding/solver/assignment.h"
#include "sharding/solver/linear_program.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"
#include "support/stopwatch.h"

namespace shadowgraph {
namespace {

using Wide = AssignmentCost::Wide;

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// HiGHS works best with numbers up to about a million; its tolerances are 10^-7 for costs and 10^-6 for rows.
constexpr double kLargest = 0x1p20;
constexpr double kCostTolerance = 1e-7;
constexpr double kRelativeTolerance = 1e-9;

// Returns a power of 2 that scales an amount to at most kLargest.
double unit_of(double amount) {
  int exponent = 0;
  std::frexp(amount / kLargest, &exponent);
  return amount > 0 ? std::ldexp(1.0, -exponent) : 1;
}

enum class Aim : uint8_t { kMinCost, kAny, kMinLimit };

// Columns: one for each state, one for each allowed pair, and the limit itself if it is minimized. Sums of pairs equal
// states (the local polytope).
class CoreProgram {
 public:
  CoreProgram(const AssignmentProblem& problem, Aim aim)
      : aim_(aim), model_(pairwise_model(problem)), possible_(simplify(problem, model_, aim != Aim::kMinLimit)) {
    if (!possible_) return;
    compact_.emplace(model_, UsageModel(problem, model_));
    cost_unit_ = unit_of(largest_cost());
    double most_bytes = static_cast<double>(problem.usage_limit);
    for (const double bytes : compact_->bytes) most_bytes = std::max(most_bytes, bytes);
    byte_unit_ = unit_of(most_bytes);
    add_states();
    add_pairs();
    if (aim_ == Aim::kMinLimit) limit_column_ = program_.add_column(1, 0, kUnbounded, false);
    add_limits();
  }

  bool is_possible() const { return possible_; }
  const HighsProgram& program() const { return program_; }

  HighsAnswer solve(const HighsRequest& request) const {
    if (program_.cost.empty()) {  // no variables are left
      const bool fits = std::ranges::all_of(compact_->row_limit, [](double left) { return left >= 0; });
      return {.status = fits ? HighsStatus::kOptimal : HighsStatus::kInfeasible, .found = fits};
    }
    HighsOptions options{.time_limit = request.time_limit, .gap = request.gap, .threads = request.threads};
    // Costs are integers, so a gap below one is none.
    if (aim_ == Aim::kMinCost) options.absolute_gap = 0.5 * cost_unit_;
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

  // Converts HiGHS's bound of the program to a bound of the requested quantity.
  Wide bound_of(double bound) const {
    if (!(bound > -kUnbounded)) return 0;
    const double unit = aim_ == Aim::kMinLimit ? byte_unit_ : cost_unit_;
    const double parts = static_cast<double>(compact_->size() + compact_->edges.size() + 1);
    const double whole = bound / unit + (aim_ == Aim::kMinLimit ? 0 : compact_->constant);
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
  double largest_cost() const {
    double largest = 0;
    for (const std::vector<double>* costs : {&compact_->cost, &compact_->pairs}) {
      for (const double cost : *costs)
        largest = cost < CompactModel::kForbiddenCost ? std::max(largest, cost) : largest;
    }
    return largest;
  }

  double cost_of(double cost) const { return aim_ == Aim::kMinCost ? cost * cost_unit_ : 0; }

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

  // Adds a row for each point that can be exceeded. Columns of bytes enter the rows where they begin and end.
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
      for (const CompactModel::Item& item : compact_->items_of(v)) {
        add(item, compact_->states(v), [&](size_t s) { return static_cast<int32_t>(compact_->first[v] + s); });
      }
    }
    for (uint32_t e = 0; e < compact_->edges.size(); ++e) {
      for (const CompactModel::Item& item : compact_->pair_items_of(e)) {
        add(item, pairs_[e].size(), [&](size_t i) { return pairs_[e][i]; });
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
  double cost_unit_ = 1;  // cost in the program for a cost of 1
  double byte_unit_ = 1;
  HighsProgram program_;
  std::vector<std::vector<int32_t>> pairs_;  // columns by edge and pair; -1: forbidden
  int32_t limit_column_ = -1;
};

AssignmentProblem without_costs(AssignmentProblem problem) {
  const auto clear = [](std::vector<int64_t>& costs) {
    for (int64_t& cost : costs) cost = cost == kForbidden ? kForbidden : 0;
  };
  for (AssignmentNode& node : problem.nodes) clear(node.costs);
  for (CostMatrix& matrix : problem.matrices) clear(matrix.costs);
  return problem;
}

// Returns whether a choice within the limit exists; nullopt if undecided within the time limit.
std::optional<bool> is_possible_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  const AssignmentProblem free = without_costs(problem);
  const CoreProgram core(free, Aim::kAny);
  if (!core.is_possible()) return false;
  const HighsAnswer answer = core.solve(request);
  if (answer.status == HighsStatus::kInfeasible) return false;
  if (answer.found && evaluate(free, core.choice_of(answer.values)).feasible()) return true;
  return std::nullopt;
}

// The smallest feasible limit.
struct LeastLimit {
  Wide bound = 0;                  // lower bound on it
  Wide usage = 0;                  // of `choice`
  std::vector<uint32_t> choice{};  // empty if none was found
};

LeastLimit least_limit_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  LeastLimit least;
  AssignmentProblem free = without_costs(problem);
  free.usage_limit = 0;  // all points have a row
  const CoreProgram core(free, Aim::kMinLimit);
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

constexpr size_t kMaxColumns = 400'000;  // above this, rows are not compared with each other
constexpr size_t kNamed = 6;

std::string bytes_of(Wide bytes) { return human_bytes(static_cast<int64_t>(bytes)); }

// Pins of one name are dropped together.
struct Demand {
  std::string name;
  std::vector<const AssignmentPin*> pins{};
  int64_t node = -1;  // node pinned by AssignmentNode::pinned
};

std::string name_of(const AssignmentProblem& problem, size_t node) {
  return problem.nodes[node].name.empty() ? fmt::format("node {}", node) : problem.nodes[node].name;
}

std::vector<Demand> demands_of(const AssignmentProblem& problem, const std::vector<AssignmentPin>& pins) {
  std::vector<Demand> demands;
  for (const AssignmentPin& pin : pins) {
    const auto known = std::ranges::find(demands, pin.name, &Demand::name);
    (known == demands.end() ? demands.emplace_back(Demand{.name = pin.name}) : *known).pins.push_back(&pin);
  }
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.pinned < 0) continue;
    const auto strategy = static_cast<size_t>(node.pinned);
    demands.push_back(
        {.name = fmt::format("{}={}", name_of(problem, i),
                             strategy < node.strategies.size() ? node.strategies[strategy] : std::to_string(strategy)),
         .node = static_cast<int64_t>(i)});
  }
  return demands;
}

AssignmentProblem without(AssignmentProblem problem, const std::vector<const Demand*>& given_up) {
  for (const Demand* demand : given_up) {
    for (const AssignmentPin* pin : demand->pins) problem.nodes[pin->node].costs = pin->costs;
    if (demand->node >= 0) problem.nodes[static_cast<size_t>(demand->node)].pinned = -1;
  }
  return problem;
}

class Conflict {
 public:
  Conflict(const AssignmentProblem& problem, const HighsRequest& request, const std::vector<AssignmentPin>& pins)
      : problem_(problem), request_(request), demands_(demands_of(problem, pins)) {}

  std::string text() {
    AssignmentProblem unlimited = problem_;
    unlimited.usage_limit = kNoLimit;
    const bool by_limit = problem_.usage_limit != kNoLimit && is_possible(unlimited, 0.2).value_or(true);
    find_needed(by_limit ? problem_ : unlimited);
    return by_limit ? limit_text() : tie_text(unlimited);
  }

 private:
  double seconds_left() const { return request_.time_limit - watch_.seconds(); }
  HighsRequest request(double share) const {
    return {.library = request_.library, .threads = request_.threads, .time_limit = share * seconds_left()};
  }
  std::optional<bool> is_possible(const AssignmentProblem& problem, double share) const {
    return is_possible_by_highs(problem, request(share));
  }

  // Drops one demand after another, and restores those without which the problem stays infeasible.
  void find_needed(const AssignmentProblem& problem) {
    for (size_t i = 0; i < demands_.size(); ++i) {
      given_up_.push_back(&demands_[i]);
      const double share = 0.5 / static_cast<double>(demands_.size() - i);
      const std::optional<bool> possible = is_possible(without(problem, given_up_), share);
      if (possible.has_value() && !*possible) continue;
      certain_ &= possible.has_value();
      needed_.push_back(&demands_[i]);
      given_up_.pop_back();
    }
  }

  std::string names() const {
    std::vector<std::string> names;
    for (const Demand* demand : needed_) names.push_back(demand->name);
    return fmt::format("{} {}", names.size() == 1 ? "pin" : "pins", fmt::join(names, " and "));
  }
  std::string spared() const {
    if (needed_.empty() || !certain_) return "";
    return needed_.size() == 1 ? "; without it one exists" : "; without any one of them one exists";
  }

  std::string limit_text() const {
    std::string text = fmt::format("No plan fits into {}{}{}. ", bytes_of(problem_.usage_limit),
                                   needed_.empty()    ? (demands_.empty() ? "" : ", even without pins")
                                   : demands_.empty() ? ""
                                                      : " with " + names(),
                                   spared());
    const LeastLimit least = least_limit_by_highs(problem_, request(0.6));
    if (least.choice.empty()) return text + fmt::format("At least {} are needed", bytes_of(least.bound));
    text += least.bound >= least.usage - least.usage / 1'000'000
                ? fmt::format("The smallest feasible limit is {}", bytes_of(least.usage))
                : fmt::format("The smallest feasible limit is between {} and {}", bytes_of(least.bound),
                              bytes_of(least.usage));
    const AssignmentCost cost = evaluate(problem_, least.choice);
    text += fmt::format(", at point {}: {}", cost.peak_at, most_used_at(problem_, least.choice, cost.peak_at));
    if (needed_.empty()) return text;
    std::vector<const Demand*> all;
    for (const Demand& demand : demands_) all.push_back(&demand);
    const LeastLimit free = least_limit_by_highs(without(problem_, all), request(1));
    if (!free.choice.empty()) text += fmt::format("; without pins it is {}", bytes_of(free.usage));
    return text;
  }

  std::string tie_text(const AssignmentProblem& unlimited) const {
    std::string text = needed_.empty()       ? "No choice is consistent, even without pins"
                       : needed_.size() == 1 ? fmt::format("No choice is consistent with {}", names())
                                             : fmt::format("No choice is consistent with {} together", names());
    if (!needed_.empty() && certain_) {
      text += needed_.size() == 1 ? "; without it there is one" : "; without any one of them there is one";
    }
    const std::string tied = nodes_between(without(unlimited, given_up_));
    if (!tied.empty()) text += ". Conflicting nodes: " + tied;
    return text;
  }

  // Names the nodes of conflicting rows of the program.
  std::string nodes_between(const AssignmentProblem& problem) const {
    size_t columns = 0;
    for (const AssignmentNode& node : problem.nodes) columns += node.costs.size();
    for (const AssignmentEdge& edge : problem.edges) columns += problem.matrices[edge.matrix].costs.size();
    if (columns > kMaxColumns || seconds_left() <= 0) return "";
    // The copy has no usages, which do not matter here.
    AssignmentProblem bare = problem;
    for (AssignmentNode& node : bare.nodes) node.usages.clear();
    for (CostMatrix& matrix : bare.matrices) matrix.usages.clear();
    bare = plain(bare);
    const LinearProgram linear = LinearProgram::of(bare);
    HighsProgram program;
    for (const LinearProgram::Column& column : linear.columns) {
      program.add_column(0, 0, column.is_allowed ? kUnbounded : 0, false);
    }
    for (const LinearProgram::Row& row : linear.rows) {
      const auto right = static_cast<double>(row.right);
      program.add_row(row.is_equation ? right : -kUnbounded, right);
      for (const LinearProgram::Term& term : row.terms) {
        program.add_term(static_cast<int32_t>(term.column), static_cast<double>(term.factor));
      }
    }
    std::set<size_t> nodes;
    for (const int32_t r : request_.library.conflicting_rows(program, seconds_left())) {
      const LinearProgram::Row& row = linear.rows[static_cast<size_t>(r)];
      // "one3": node 3 has exactly one strategy. "a5_0", "b5_1": edge 5 constrains its nodes.
      const bool of_node = row.name.starts_with("one");
      const size_t number = std::stoul(row.name.substr(of_node ? 3 : 1));
      of_node ? nodes.insert({number}) : nodes.insert({bare.edges[number].a, bare.edges[number].b});
    }
    std::vector<std::string> names;
    for (const size_t node : nodes) {
      if (names.size() < kNamed) names.push_back(name_of(problem, node));
    }
    return names.empty() ? ""
                         : fmt::format("{}{}", fmt::join(names, ", "),
                                       nodes.size() > kNamed ? fmt::format(" and {} more", nodes.size() - kNamed) : "");
  }

  const AssignmentProblem& problem_;
  const HighsRequest& request_;
  const Stopwatch watch_;
  const std::vector<Demand> demands_;
  std::vector<const Demand*> given_up_;
  std::vector<const Demand*> needed_;
  bool certain_ = true;  // every demand in `needed_` is proven to be necessary
};

}  // namespace

HighsMinimum minimum_by_highs(const AssignmentProblem& problem, const HighsRequest& request) {
  HighsMinimum result;
  const CoreProgram core(problem, Aim::kMinCost);
  const HighsAnswer answer = core.is_possible() ? core.solve(request) : HighsAnswer{.status = HighsStatus::kInfeasible};
  result.possible = answer.status != HighsStatus::kInfeasible;
  if (!result.possible) return result;
  result.bound = core.bound_of(answer.bound);
  if (answer.found) result.choice = core.choice_of(answer.values);
  return result;
}

std::string conflict_by_highs(const AssignmentProblem& problem, const HighsRequest& request,
                              const std::vector<AssignmentPin>& pins) {
  return Conflict(problem, request, pins).text();
}

}  // namespace shadowgraph
