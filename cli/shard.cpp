// `shadowgraph shard`: plans the layouts of all tensors of a step on a device mesh, or solves an assignment problem.
#include "shadowgraph/shard/shard.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <limits>
#include <ostream>
#include <utility>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/tool.h"
#include "cli/verbs.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/solver.h"
#include "support/files.h"

namespace shadowgraph::cli {
namespace {

struct ShardRequest {
  CaptureRequest capture{.mode = CaptureMode::kTrain};
  ShardingRequest step;  // completed by step_request() from the text fields below
  std::string mesh;
  std::string spec;          // device; empty: by the graph's device
  std::string interconnect;  // empty: typical for the device
  std::string rules;         // file of rules; empty: none
  std::string solution;      // file of an existing plan; empty: none
  std::string output;        // folder for the graph, the plan and a rank's graph; with `problem`: solution file
  bool all_ranks = false;    // write every rank's graph there, not only that of ShardingRequest::rank
  std::string emit_python;   // file for the plan as Python; empty: none
  std::string dot;           // files for drawings of the plan; empty: none
  std::string svg;
  int rows = 40;
  bool json = false;
  std::string problem;   // problem file, ours or IOPDDL, solved instead of planning a step
  double gap = 0;        // relative optimality gap for `problem`
  int64_t threads = 0;   // 0: all cores
  std::string exported;  // file to write the problem to; empty: none
  AssignmentFormat format = AssignmentFormat::kJson;
};

void export_problem(const AssignmentProblem& problem, const ShardRequest& request) {
  if (request.exported.empty()) return;
  write_file(request.exported, [&](std::ostream& out) { write_assignment(problem, request.format, out); });
}

// Builds and checks the request before the step is captured. The result refers to `request`.
ShardingRequest step_request(const ShardRequest& request) {
  ShardingRequest step = request.step;
  step.mesh = DeviceMesh::parse(request.mesh);
  if (!request.rules.empty()) step.rules.add(read_file(request.rules));
  if (!request.spec.empty()) step.device = DeviceSpec::find(request.spec);
  step.device_advice = "choose one with --spec (see 'shadowgraph list devices')";
  if (!request.interconnect.empty()) step.links = Interconnect::find(request.interconnect);
  if (!request.solution.empty()) {
    step.solution = read_file(request.solution);
    step.solution_name = request.solution;
  }
  if (step.recompute && !step.memory) throw Error("--recompute requires --memory");
  if (!request.exported.empty()) {
    step.problem = [&request](const ShardingProblem& problem) { export_problem(problem.assignment(), request); };
  }
  check(step);
  return step;
}

void draw_plan(const ShardRequest& request, const Sharding& planned) {
  if (request.dot.empty() && request.svg.empty()) return;
  const std::string dot = write_dot(view_of_plan(planned.graph, planned.result.plan, planned.planner()));
  if (!request.dot.empty()) write_file(request.dot, dot);
  if (!request.svg.empty()) write_file(request.svg, render_svg(dot));
}

// Exports the plan to Python, for torch.distributed.tensor and fully_shard.
void emit_python(const ShardRequest& request, const Sharding& planned, const nlohmann::json& answer) {
  if (request.emit_python.empty()) return;
  const std::string report = python().ask("emit_python", {{"path", request.emit_python},
                                                          {"graph", to_text(planned.graph, PrintPreset::kCanonical)},
                                                          {"plan", to_json(planned.result.plan, planned.graph)},
                                                          {"parallelism", answer.value("parallelism", "")},
                                                          {"title", answer["title"]},
                                                          {"debug", request.capture.debug}});
  print_log("{}\n", report);
}

int shard(const ShardRequest& request) {
  if (!request.emit_python.empty()) needed_python("--emit-python writes a plan for Python modules");
  ShardingRequest step = step_request(request);
  CaptureRequest captured = request.capture;
  captured.foreach = false;
  LoadedGraph loaded = load(captured);
  const std::filesystem::path folder = request.output;
  const auto write_rank = [&](const ShardedGraph& sharded) {
    write_graph_file((folder / fmt::format("rank{}.sg", sharded.rank)).string(), sharded.graph);
  };
  if (!request.output.empty()) make_folder(folder);
  if (request.all_ranks && !request.output.empty()) step.each_rank = write_rank;
  const Sharding planned = with_progress("looking for the best sharding of " + loaded.name,
                                         [&] { return shard_step(std::move(loaded.graph), step); });
  const nlohmann::json json = to_json(planned);
  if (!request.output.empty()) {
    write_graph_file((folder / "graph.sg").string(), planned.graph);
    write_file((folder / "layouts.json").string(), json_text(to_json(planned.result.plan, planned.graph)));
    write_file((folder / "sharding.json").string(), json_text(json));
    if (!request.all_ranks) write_rank(*planned.result.rank);
  }
  draw_plan(request, planned);
  emit_python(request, planned, json);
  print_text(request.json ? json_text(json) : to_text(planned, request.rows));
  return 0;
}

std::string quality(const AssignmentSolution& solution, const nlohmann::json& json) {
  if (solution.optimal) return "optimal";
  const double above = solution.lower_bound > 0
                           ? 100 * (static_cast<double>(solution.cost) / static_cast<double>(solution.lower_bound) - 1)
                           : 100.0;
  return fmt::format("at most {:.2f} % above the optimum, which is at least {}", above,
                     json["lower_bound"].get<std::string>());
}

// Evaluates the choice of another solver, without solving.
AssignmentSolution imported_solution(const AssignmentProblem& problem, const ShardRequest& request) {
  const AssignmentChoice given = read_assignment_choice(read_file(request.solution), request.solution);
  const AssignmentCost cost = given.of(problem);
  return {.choice = given.choice,
          .feasible = cost.feasible(),
          .cost = cost.cost,
          .peak = cost.peak,
          .peak_at = cost.peak_at,
          .why_infeasible = cost.feasible() ? "" : "its memory usage exceeds the limit",
          .stopped = "given"};
}

int solve_problem(const CLI::App& command, const ShardRequest& request) {
  takes_only(command, "--problem", {"--output", "--json", "--solution", "Solver"});
  const AssignmentProblem problem = [&] {
    try {
      return read_assignment(read_file(request.problem));
    } catch (const ParseError& error) {
      throw ParseError(request.problem + ":" + error.what(), error.line(), error.column());
    }
  }();
  export_problem(problem, request);
  if (!request.solution.empty()) takes_only(command, "--solution", {"--problem", "--export", "--format", "--json"});
  // Only the time limit ends the search.
  const SolveOptions options{.time_limit = command.count("--time-limit") > 0 ? request.step.time_limit : 60,
                             .gap = request.gap,
                             .iterations = std::numeric_limits<int>::max(),
                             .moves = std::numeric_limits<int64_t>::max(),
                             .threads = static_cast<size_t>(request.threads),
                             .solver = request.step.solver,
                             .highs = request.step.highs};
  const AssignmentSolution solution = with_progress("solving " + request.problem, [&] {
    return request.solution.empty() ? solve(problem, options) : imported_solution(problem, request);
  });
  const nlohmann::json json = to_json(solution);
  if (!request.output.empty()) write_file(request.output, json_text(json));
  if (request.json) {
    print_text(json_text(json));
    return 0;
  }
  print_out("{} nodes, {} edges\n", problem.nodes.size(), problem.edges.size());
  if (!solution.feasible)
    throw Error(
        fmt::format("{}: {}", request.solution.empty() ? request.problem : request.solution, solution.why_infeasible));
  print_out("cost {}, {}\n", json["cost"].get<std::string>(),
            request.solution.empty() ? quality(solution, json) : "as given in " + request.solution);
  if (request.solution.empty() && !solution.optimal) {
    print_out("stopped by {}\n", solution.stopped == "gap" ? "the optimality gap" : "the time limit");
  }
  if (problem.usage_limit != kNoLimit) {
    print_out("usage {} of {}, at point {}\n", json["peak"].get<std::string>(), problem.usage_limit, solution.peak_at);
  }
  return 0;
}

int shard_or_solve(const CLI::App& command, const ShardRequest& request) {
  if (!request.problem.empty()) return solve_problem(command, request);
  for (const char* needed : {"SOURCE", "--mesh"}) {
    if (command.count(needed) == 0) throw CLI::RequiredError(needed);
  }
  const auto needs = [&](bool met, const char* option, const char* what) {
    if (!met && command.count(option) > 0) throw CLI::ValidationError(option, what);
  };
  needs(false, "--gap", "requires --problem");
  needs(false, "--threads", "requires --problem");
  if (!request.solution.empty())
    takes_none_of(command, "--solution", {"--parallelism", "--recompute", "--export", "--pin"});
  if (request.json) takes_none_of(command, "--json", {"--rows"});
  needs(!request.output.empty(), "--all-ranks", "requires an output folder; add -o FOLDER");
  needs(!request.output.empty(), "--rank", "requires an output folder; add -o FOLDER");
  needs(request.step.solver != AssignmentSolver::kBuiltin, "--highs", "requires --solver highs or --solver both");
  needs(!request.exported.empty(), "--format", "requires --export");
  return shard(request);
}

void add_plan_options(CLI::App& command, ShardRequest& request) {
  begin_group(command, "Plan");
  command.add_option("--mesh", request.mesh, "Device mesh: 8, 8x8, 4x4x4, or with axis names dp=8,tp=4 (required)");
  command.add_option("--solution", request.solution,
                     "Existing plan: plan.json, a solution of --export, or {\"head.weight\": \"R,S(0)\"}");
  command.add_option("--rules", request.rules, "File of user-defined sharding rules, one operator per line");
  begin_group(command, "Solver");
  command.add_option("--problem", request.problem,
                     "Solve this problem file instead of a SOURCE: written by --export, or IOPDDL");
  command.add_option("--export", request.exported, "Write the assignment problem to this file, for other solvers");
  add_choice(command, "--format", request.format, "Format of --export: json, iopddl, lp, mps");
  add_field(command, "--gap", request.gap, "With --problem: relative optimality gap at which to stop: 0.001",
            {.min = 0, .max = 1});
  add_field(command, "--threads", request.threads,
            "With --problem: solver threads (default: all cores); does not affect the result", {.min = 1});
}

void add_options(CLI::App& command, ShardRequest& request) {
  add_source(command, request.capture)->required(false);
  add_capture_options(command, request.capture);
  add_spec_option(command, request.spec);
  add_interconnect_option(command, request.interconnect);
  add_plan_options(command, request);
  cli::add_options(command, request.step, ShardingRequest::table());
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output,
                     "Folder for graph.sg, layouts.json, sharding.json, rank0.sg; with --problem: solution file");
  add_number(command, "--rank", request.step.rank, 0, "Rank whose graph is written");
  command.add_flag("--all-ranks", request.all_ranks, "Write the graphs of all ranks: rank0.sg, rank1.sg, ...");
  command.add_option("--emit-python", request.emit_python,
                     "Write the plan as Python for eager modules: torch.distributed.tensor and fully_shard");
  command.add_option("--dot", request.dot, "Draw the plan to this DOT file: layouts as colors, redistributions in red");
  command.add_option("--svg", request.svg, "Draw the plan to this SVG file");
  add_number(command, "--rows", request.rows, 0, "Maximum rows of a table (0: all)");
  command.add_flag("--json", request.json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph shard llama3_8b --mesh dp=8,tp=8 --dtype bf16 --memory 80GB -o plan\n"
      "  shadowgraph shard llama3_8b --mesh 8 --dtype bf16 --parallelism fully-sharded -o plan\n"
      "  shadowgraph shard llama3_8b --mesh 8 --dtype bf16 --solution plan/layouts.json --compare\n"
      "  shadowgraph shard --problem problem.json --time-limit 10 -o solution.json");
}

}  // namespace

Work declare_shard(CLI::App& command) { return work_of<ShardRequest>(command, add_options, shard_or_solve); }

}  // namespace shadowgraph::cli
