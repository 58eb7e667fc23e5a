#include "cli/assign.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <limits>
#include <ostream>

#include "shadowgraph/sharding/assignment_files.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {

void assign(const AssignRequest& request) {
  const AssignmentProblem problem = read_assignment(read_file(request.problem));
  if (!request.exported.empty()) {
    write_file(request.exported, [&](std::ostream& out) { write_assignment(problem, request.format, out); });
  }
  // The time is what ends it.
  const SolveOptions options{.time_limit = request.time_limit,
                             .gap = request.gap,
                             .iterations = std::numeric_limits<int>::max(),
                             .moves = std::numeric_limits<int64_t>::max(),
                             .threads = request.threads,
                             .solver = assignment_solver(request.solver),
                             .highs = request.highs};
  const AssignmentSolution solution = solve(problem, options);
  const nlohmann::json json = to_json(solution);
  if (!request.output.empty()) write_file(request.output, json.dump() + "\n");
  if (request.json) {
    std::puts(json.dump(2).c_str());
    return;
  }
  fmt::print("{} nodes, {} edges\n", problem.nodes.size(), problem.edges.size());
  if (!solution.feasible) throw Error(fmt::format("{}: {}", request.problem, solution.why_infeasible));
  fmt::print(
      "cost {}, {}\n", json["cost"].get<std::string>(),
      solution.optimal
          ? std::string("optimal")
          : fmt::format("at most {:.2f} % above the optimum, which is at least {}",
                        solution.lower_bound > 0
                            ? 100 * (static_cast<double>(solution.cost) / static_cast<double>(solution.lower_bound) - 1)
                            : 100.0,
                        json["lower_bound"].get<std::string>()));
  if (!solution.optimal)
    fmt::print("stopped by {}\n", solution.stopped == "gap" ? "the gap that is good enough" : "time");
  if (problem.usage_limit != kNoLimit) {
    fmt::print("usage {} of {}, at point {}\n", json["peak"].get<std::string>(), problem.usage_limit, solution.peak_at);
  }
}

}  // namespace shadowgraph::cli
