#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "shadowgraph/shard/solver.h"
#include "sharding/solver/assignment.h"
#include "sharding/solver/highs.h"
#include "sharding/solver/minimum.h"
#include "sharding/solver/pairwise.h"
#include "support/stopwatch.h"

namespace shadowgraph {
namespace {

using Wide = AssignmentCost::Wide;

// Share of the time for the problem without its limit.
constexpr double kShareWithoutLimit = 0.08;

// With several threads, HiGHS may return different optimal choices.
int highs_threads(const SolveOptions& options) { return options.threads == 0 ? 1 : static_cast<int>(options.threads); }

class Solver {
 public:
  Solver(const AssignmentProblem& problem, const SolveOptions& options) : problem_(problem), options_(options) {}

  AssignmentSolution run() {
    if (options_.solver != AssignmentSolver::kHighs) search();
    if (options_.solver != AssignmentSolver::kBuiltin && !is_impossible_ && !is_good_enough()) ask_highs();
    solution_.lower_bound = solution_.feasible ? std::min(bound_, solution_.cost) : bound_;
    solution_.optimal = solution_.feasible && bound_ >= solution_.cost;
    solution_.stopped = is_impossible_      ? "infeasible"
                        : solution_.optimal ? "optimal"
                        : is_good_enough()  ? "gap"
                        : out_of_time()     ? "time"
                                            : "work";
    return solution_;
  }

  double seconds_left() const { return options_.time_limit - watch_.seconds(); }

 private:
  void take(const std::vector<uint32_t>& choice) {
    const AssignmentCost cost = evaluate(problem_, choice);
    if (!cost.feasible() || (solution_.feasible && cost.cost >= solution_.cost)) return;
    solution_.feasible = true;
    solution_.choice = choice;
    solution_.cost = cost.cost;
    solution_.peak = cost.peak;
    solution_.peak_at = cost.peak_at;
  }

  bool is_good_enough() const {
    return solution_.feasible &&
           static_cast<double>(solution_.cost - bound_) <= options_.gap * static_cast<double>(solution_.cost);
  }

  bool out_of_time() const { return seconds_left() < 0; }
  // Returns the fraction of the built-in search's time limit that has been used.
  double time_spent() const {
    return watch_.seconds() / (options_.solver == AssignmentSolver::kBuiltin ? 1 : 0.5) / options_.time_limit;
  }

  void search() {
    const bool limited = problem_.usage_limit != kNoLimit;
    const double share = limited ? kShareWithoutLimit : 1;
    const Minimum free =
        minimum_of(pairwise_model(problem_),
                   {.gap = options_.gap, .table_limit = options_.table_limit, .split = !limited, .out_of_time = [&] {
                      return time_spent() > share;
                    }});
    if (!free.possible) {
      is_impossible_ = true;
      solution_.why_infeasible = free.impossible_node == kNoNode
                                     ? "the pins and in-place writes are contradictory"
                                     : fmt::format("{} has no strategy compatible with its neighbors and the pins",
                                                   problem_.nodes[free.impossible_node].name);
      return;
    }
    bound_ = static_cast<Wide>(std::max(free.bound, 0.0));
    if (!free.choice.empty()) take(free.choice);
    if (!options_.start.empty()) take(options_.start);
    if (limited && (!solution_.feasible || !is_good_enough())) keep_within_limit(free.choice);
  }

  void keep_within_limit(const std::vector<uint32_t>& free) {
    const auto best = [this] { return solution_.feasible ? static_cast<double>(solution_.cost) : kInfinite; };
    LimitedOptions options{.gap = options_.gap,
                           .bound = static_cast<double>(bound_),
                           .iterations = options_.iterations,
                           .moves = options_.moves,
                           .threads = options_.threads,
                           .time_spent = [this] { return time_spent(); },
                           .take =
                               [&](const std::vector<uint32_t>& choice) {
                                 take(choice);
                                 return best();
                               },
                           .best = best()};
    for (const std::vector<uint32_t>* start : {&free, &options_.start}) {
      if (start->size() == problem_.nodes.size()) options.starts.push_back(*start);
    }
    const Limited limited = search_within_limit(problem_, pairwise_model(problem_), options);
    bound_ = std::max(bound_, static_cast<Wide>(std::ceil(limited.bound)));
    is_impossible_ = !limited.possible;
  }

  void ask_highs() {
    if (!options_.start.empty()) take(options_.start);
    const HighsMinimum found = minimum_by_highs(problem_, {.library = HighsLibrary::open(options_.highs),
                                                           .gap = options_.gap,
                                                           .threads = highs_threads(options_),
                                                           .time_limit = seconds_left(),
                                                           .start = solution_.choice});
    is_impossible_ = !found.possible && !solution_.feasible;
    bound_ = std::max(bound_, found.bound);
    if (!found.choice.empty()) take(found.choice);
  }

  const AssignmentProblem& problem_;
  const SolveOptions& options_;
  const Stopwatch watch_;
  AssignmentSolution solution_;
  Wide bound_ = 0;
  bool is_impossible_ = false;  // proven
};

}  // namespace

AssignmentSolution solve(const AssignmentProblem& problem, const SolveOptions& options) {
  problem.check();
  // A cost above the sum of all others can be treated as forbidden, and forbidden entries simplify the problem a lot.
  if (const std::optional<AssignmentProblem> strict = without_costs_above_all(problem)) {
    AssignmentSolution solution = Solver(*strict, options).run();
    if (solution.feasible || solution.stopped == "time") return solution;
  }
  Solver solver(problem, options);
  AssignmentSolution solution = solver.run();
  if (solution.feasible) return solution;
  const MinimumUsages least(problem);
  if (least.exceed_limit()) solution.stopped = "infeasible";
  if (options.solver != AssignmentSolver::kBuiltin && solution.stopped == "infeasible") {
    solution.why_infeasible = conflict_by_highs(problem,
                                                {.library = HighsLibrary::open(options.highs),
                                                 .threads = highs_threads(options),
                                                 .time_limit = std::max(solver.seconds_left(), options.time_limit / 2)},
                                                options.pins);
  } else if (solution.why_infeasible.empty()) {
    solution.why_infeasible = least.to_text(solution.stopped == "infeasible");
  }
  return solution;
}

}  // namespace shadowgraph
