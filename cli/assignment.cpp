#include "cli/assignment.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <ostream>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "shadowgraph/error.h"
#include "shadowgraph/sharding/assignment_files.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

std::string quality(const AssignmentSolution& solution, const nlohmann::json& json) {
  if (solution.optimal) return "optimal";
  const double above = solution.lower_bound > 0
                           ? 100 * (static_cast<double>(solution.cost) / static_cast<double>(solution.lower_bound) - 1)
                           : 100.0;
  return fmt::format("at most {:.2f} % above the optimum, which is at least {}", above,
                     json["lower_bound"].get<std::string>());
}

}  // namespace

void add_solver_options(CLI::App& command, SolverRequest& request) {
  add_choice(command, "--solver", request.solver, {"own", "highs", "both"},
             "own search; highs, of the package highspy; both: HiGHS for what is left open");
  command.add_option("--highs", request.highs,
                     "libhighs.so.1 or its folder (default: $SHADOWGRAPH_HIGHS, else beside libtorch)");
  command.add_option("--time-limit", request.time_limit, "Seconds for the solver (default: 20; 60 with --problem)")
      ->check(positive_number);
  command.add_option("--export", request.exported, "File to write the problem to, for other solvers");
  add_choice(command, "--format", request.format, {"json", "iopddl", "lp", "mps"},
             "Of --export: json, iopddl, lp or mps");
}

void export_problem(const AssignmentProblem& problem, const SolverRequest& request) {
  if (request.exported.empty()) return;
  write_file(request.exported, [&](std::ostream& out) { write_assignment(problem, request.format, out); });
}

void solve_problem(const ProblemRequest& request, const SolverRequest& solver) {
  const AssignmentProblem problem = read_assignment(read_file(request.problem));
  export_problem(problem, solver);
  // The time is what ends it.
  const SolveOptions options{.time_limit = solver.time_limit.value_or(60),
                             .gap = request.gap,
                             .iterations = std::numeric_limits<int>::max(),
                             .moves = std::numeric_limits<int64_t>::max(),
                             .threads = request.threads,
                             .solver = assignment_solver(solver.solver),
                             .highs = solver.highs};
  const AssignmentSolution solution = solve(problem, options);
  const nlohmann::json json = to_json(solution);
  if (!request.output.empty()) write_file(request.output, json.dump() + "\n");
  if (request.json) {
    print_text(json.dump(2));
    return;
  }
  fmt::print("{} nodes, {} edges\n", problem.nodes.size(), problem.edges.size());
  if (!solution.feasible) throw Error(fmt::format("{}: {}", request.problem, solution.why_infeasible));
  fmt::print("cost {}, {}\n", json["cost"].get<std::string>(), quality(solution, json));
  if (!solution.optimal) {
    fmt::print("stopped by {}\n", solution.stopped == "gap" ? "the gap that is good enough" : "time");
  }
  if (problem.usage_limit != kNoLimit) {
    fmt::print("usage {} of {}, at point {}\n", json["peak"].get<std::string>(), problem.usage_limit, solution.peak_at);
  }
}

}  // namespace shadowgraph::cli
