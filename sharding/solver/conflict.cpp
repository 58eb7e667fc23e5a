#include "sharding/solver/conflict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "shadowgraph/units.h"
#include "sharding/solver/highs.h"
#include "sharding/solver/least_needs.h"
#include "sharding/solver/linear_program.h"
#include "sharding/solver/plain_problem.h"

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;

constexpr size_t kMostColumns = 400'000;  // of a program whose rows are held against each other
constexpr size_t kNamed = 6;

std::string bytes_of(Wide bytes) { return human_bytes(static_cast<int64_t>(bytes)); }

// Pins of one name are given up together.
struct Demand {
  std::string name;
  std::vector<const AssignmentPin*> pins{};
  int64_t node = -1;  // whose AssignmentNode::pinned it is
};

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
        {.name = fmt::format("{}={}", node.name.empty() ? fmt::format("node {}", i) : node.name,
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
  Conflict(const AssignmentProblem& problem, const ConflictRequest& request)
      : problem_(problem),
        request_(request),
        start_(std::chrono::steady_clock::now()),
        demands_(demands_of(problem, request.pins)) {}

  std::string text() {
    AssignmentProblem unlimited = problem_;
    unlimited.usage_limit = kNoLimit;
    const bool by_limit = problem_.usage_limit != kNoLimit && is_possible(unlimited, 0.2).value_or(true);
    const AssignmentProblem& asked = by_limit ? problem_ : unlimited;
    find_needed(asked);
    return by_limit ? limit_text() : tie_text(unlimited);
  }

 private:
  double seconds_left() const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    return request_.time_limit - spent.count();
  }
  HighsRequest request(double share) const {
    return {.library = request_.library, .threads = request_.threads, .time_limit = share * seconds_left()};
  }
  std::optional<bool> is_possible(const AssignmentProblem& problem, double share) const {
    return is_possible_by_highs(problem, request(share));
  }

  // Gives up one demand after the other, and takes back those without which something is possible.
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
    return fmt::format("{} {}", names.size() == 1 ? "the pin" : "the pins", fmt::join(names, " and "));
  }
  std::string spared() const {
    if (needed_.empty() || !certain_) return "";
    return needed_.size() == 1 ? "; without it something does" : "; without any one of them something does";
  }

  std::string limit_text() const {
    std::string text = fmt::format("Nothing keeps within {}{}{}. ", bytes_of(problem_.usage_limit),
                                   needed_.empty()    ? (demands_.empty() ? "" : ", whatever the pins")
                                   : demands_.empty() ? ""
                                                      : " with " + names(),
                                   spared());
    const LeastLimit least = least_limit_by_highs(problem_, request(0.6));
    if (least.choice.empty()) return text + fmt::format("At least {} are needed", bytes_of(least.bound));
    text += least.bound >= least.usage - least.usage / 1'000'000
                ? fmt::format("The least limit that something fits in is {}", bytes_of(least.usage))
                : fmt::format("The least limit that something fits in is between {} and {}", bytes_of(least.bound),
                              bytes_of(least.usage));
    const AssignmentCost cost = evaluate(problem_, least.choice);
    text += fmt::format(", at point {}: {}", cost.peak_at, most_used_at(problem_, least.choice, cost.peak_at));
    if (needed_.empty()) return text;
    const LeastLimit free = least_limit_by_highs(without(problem_, all()), request(1));
    if (!free.choice.empty()) text += fmt::format("; without pins it is {}", bytes_of(free.usage));
    return text;
  }

  std::vector<const Demand*> all() const {
    std::vector<const Demand*> all;
    for (const Demand& demand : demands_) all.push_back(&demand);
    return all;
  }

  std::string tie_text(const AssignmentProblem& unlimited) const {
    std::string text = needed_.empty()       ? "No choice agrees, pins or none"
                       : needed_.size() == 1 ? fmt::format("No choice agrees with {}", names())
                                             : fmt::format("No choice agrees with {} at once", names());
    if (!needed_.empty() && certain_) {
      text += needed_.size() == 1 ? "; without it there is one" : "; without any one of them there is one";
    }
    const std::string tied = nodes_between(without(unlimited, given_up_));
    if (!tied.empty()) text += ". What contradicts itself: " + tied;
    return text;
  }

  // Names the nodes of the rows that contradict each other in the program without whole columns.
  std::string nodes_between(const AssignmentProblem& problem) const {
    size_t columns = 0;
    for (const AssignmentNode& node : problem.nodes) columns += node.costs.size();
    for (const AssignmentEdge& edge : problem.edges) columns += problem.matrices[edge.matrix].costs.size();
    if (columns > kMostColumns || seconds_left() <= 0) return "";
    // The copy of the problem has no usages: they are not asked for.
    AssignmentProblem bare = problem;
    for (AssignmentNode& node : bare.nodes) node.usages.clear();
    for (CostMatrix& matrix : bare.matrices) matrix.usages.clear();
    bare = plain(bare);
    const LinearProgram linear = LinearProgram::of(bare);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    HighsProgram program;
    for (const LinearProgram::Column& column : linear.columns) {
      program.add_column(0, 0, column.is_allowed ? kInfinity : 0, false);
    }
    for (const LinearProgram::Row& row : linear.rows) {
      const auto right = static_cast<double>(row.right);
      program.add_row(row.is_equation ? right : -kInfinity, right);
      for (const LinearProgram::Term& term : row.terms) {
        program.add_term(static_cast<int32_t>(term.column), static_cast<double>(term.factor));
      }
    }
    std::set<size_t> nodes;
    for (const int32_t r : request_.library.conflicting_rows(program, seconds_left())) {
      const LinearProgram::Row& row = linear.rows[static_cast<size_t>(r)];
      // "one3": node 3 has one strategy. "a5_0", "b5_1": edge 5 ties its nodes.
      const bool of_node = row.name.starts_with("one");
      const size_t number = std::stoul(row.name.substr(of_node ? 3 : 1));
      if (of_node) {
        nodes.insert(number);
      } else {
        nodes.insert({bare.edges[number].a, bare.edges[number].b});
      }
    }
    std::vector<std::string> names;
    for (const size_t node : nodes) {
      if (names.size() == kNamed) break;
      names.push_back(problem.nodes[node].name.empty() ? fmt::format("node {}", node) : problem.nodes[node].name);
    }
    return names.empty() ? ""
                         : fmt::format("{}{}", fmt::join(names, ", "),
                                       nodes.size() > kNamed ? fmt::format(" and {} more", nodes.size() - kNamed) : "");
  }

  const AssignmentProblem& problem_;
  const ConflictRequest& request_;
  const std::chrono::steady_clock::time_point start_;
  const std::vector<Demand> demands_;
  std::vector<const Demand*> given_up_;
  std::vector<const Demand*> needed_;
  bool certain_ = true;  // whether every demand in `needed_` is shown to be in the way
};

}  // namespace

std::string conflict_by_highs(const AssignmentProblem& problem, const ConflictRequest& request) {
  return Conflict(problem, request).text();
}

}  // namespace shadowgraph
