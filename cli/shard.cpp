// `shadowgraph shard`: layouts for all tensors of a step on many devices; or an assignment problem from a file.
#include "shadowgraph/sharding/shard.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <limits>
#include <memory>
#include <ostream>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/draw_plan.h"
#include "shadowgraph/error.h"
#include "shadowgraph/sharding/assignment_files.h"
#include "shadowgraph/sharding/shard_and_recompute.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

struct ShardRequest {
  CaptureRequest capture;
  std::string mesh;
  std::string spec;               // device; empty: by the graph's
  std::string interconnect;       // empty: what is usual around the device
  std::optional<int64_t> memory;  // bytes a device
  std::vector<std::string> pins;  // NAME=LAYOUT
  std::string rules;              // file of rules; empty: none
  bool unfold = false;
  bool cut_random = false;
  bool cut_vocabulary = false;
  bool recompute = false;            // compute again what does not fit
  bool compare = false;              // with plans as people write them
  std::vector<std::string> explain;  // placeholders or "n329"
  std::string output;                // folder for the graph, the plan and a device's graph; file for a solution
  int64_t rank = 0;                  // whose graph is written there
  bool all_ranks = false;            // every device's
  std::string dot;                   // files for a picture of the plan; empty: none
  std::string svg;
  int rows = 40;
  bool json = false;
  std::string problem;               // file of a problem, ours or one of IOPDDL, solved instead of a step
  double gap = 0;                    // of that: relative, good enough
  int threads = 1;                   // 1 or 2
  std::string solver = "own";        // own, highs, both
  std::string highs;                 // its library; empty: where it is usual
  std::optional<double> time_limit;  // seconds; empty: 20, and 60 for a problem from a file
  std::string exported;              // file to write the problem to; empty: none
  std::string format = "json";       // of it: json, iopddl, lp, mps
};

void export_problem(const AssignmentProblem& problem, const ShardRequest& request) {
  if (request.exported.empty()) return;
  write_file(request.exported, [&](std::ostream& out) { write_assignment(problem, request.format, out); });
}

// The options of a search, and the figures that they point at.
struct Search {
  ShardingRules rules;
  std::optional<DeviceSpec> spec;
  std::optional<Interconnect> links;
  ShardingOptions sharding;
  ShardOptions options;
};

ShardingPin pin_of(const std::string& text) {
  const size_t equals = text.rfind('=');
  return {.name = text.substr(0, equals), .layout = Layout::parse(text.substr(equals + 1))};
}

// What can be said before a step is captured.
std::unique_ptr<Search> search_for(const ShardRequest& request) {
  auto search = std::make_unique<Search>();
  ShardingOptions& sharding = search->sharding;
  sharding.mesh = DeviceMesh::parse(request.mesh);
  if (!request.rules.empty()) search->rules.add(read_file(request.rules));
  sharding.rules = &search->rules;
  for (const std::string& pin : request.pins) sharding.pins.push_back(pin_of(pin));
  if (request.memory) sharding.memory = *request.memory;
  sharding.unfold = request.unfold;
  sharding.cut_random = request.cut_random;

  ShardOptions& options = search->options;
  options.compare = request.compare;
  options.explain = request.explain;
  options.rank = request.rank;
  options.solve.time_limit = request.time_limit.value_or(20);
  options.solve.solver = assignment_solver(request.solver);
  options.solve.highs = request.highs;
  if (request.memory) options.solve.gap = 1e-3;
  if (!request.exported.empty()) {
    options.problem = [&request](const ShardingProblem& problem) { export_problem(problem.assignment(), request); };
  }
  return search;
}

void add_device(const ShardRequest& request, const Graph& graph, Search& search) {
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCUDA, 0));
  search.spec = DeviceSpec::find(request.spec, device.type());
  if (!search.spec) throw Error(fmt::format("no figures are known of {} devices; name some with --spec", device.str()));
  search.links =
      request.interconnect.empty() ? Interconnect::around(search.spec->name) : Interconnect::find(request.interconnect);
  if (!search.links) search.links = Interconnect::named("pcie4");
  search.sharding.device = &*search.spec;
  search.sharding.interconnect = &*search.links;
}

void draw_plan(const ShardRequest& request, const Graph& planned, const ShardingAnswer& answer, const Search& search) {
  if (request.dot.empty() && request.svg.empty()) return;
  const RedistributionPlanner planner(search.sharding.mesh, redistribution_rates(search.sharding));
  const std::string dot = write_dot(view_of_plan(planned, answer.plan, planner));
  if (!request.dot.empty()) write_file(request.dot, dot);
  if (!request.svg.empty()) write_file(request.svg, render_svg(dot));
}

int shard(const ShardRequest& request) {
  const auto search = search_for(request);
  LoadedGraph loaded = load(request.capture);
  // A mean over a batch that is cut is no mean of means where some targets do not count.
  split_mean_losses(loaded.graph);
  if (request.cut_vocabulary) split_log_softmaxes(loaded.graph);
  add_device(request, loaded.graph, *search);
  const std::filesystem::path folder = request.output;
  const auto write_rank = [&](const ShardedGraph& sharded) {
    write_graph_file((folder / fmt::format("rank{}.sg", sharded.rank)).string(), sharded.graph);
  };
  if (!request.output.empty()) std::filesystem::create_directories(folder);
  if (request.all_ranks && !request.output.empty()) search->options.each_rank = write_rank;
  if (request.recompute && !request.memory) throw Error("--recompute makes a step fit: give --memory");
  std::optional<RecomputedSharding> both;
  std::optional<ShardingAnswer> alone;
  if (request.recompute) {
    both = shard_and_recompute(loaded.graph, search->sharding, {.shard = search->options});
  } else {
    alone = shadowgraph::shard(loaded.graph, search->sharding, search->options);
  }
  const ShardingAnswer& answer = both ? both->answer : *alone;
  const Graph& planned = both ? both->graph : loaded.graph;
  const nlohmann::json json = both ? to_json(*both) : to_json(answer);
  if (!request.output.empty()) {
    write_graph_file((folder / "graph.sg").string(), planned);
    write_file((folder / "plan.json").string(), to_json(answer.plan, planned).dump(1) + "\n");
    write_file((folder / "answer.json").string(), json.dump(2) + "\n");
    if (!request.all_ranks) write_rank(*answer.rank);
  }
  draw_plan(request, planned, answer, *search);
  print_text(request.json ? json.dump(2) + "\n" : both ? to_text(*both, request.rows) : to_text(answer, request.rows));
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

int solve_problem(const CLI::App& command, const ShardRequest& request) {
  takes_only(command, "--problem", {"--output", "--json", "The solver"});
  const AssignmentProblem problem = read_assignment(read_file(request.problem));
  export_problem(problem, request);
  // The time is what ends it.
  const SolveOptions options{.time_limit = request.time_limit.value_or(60),
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
    print_text(json.dump(2));
    return 0;
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
  return 0;
}

int shard_or_solve(const CLI::App& command, const ShardRequest& request) {
  if (!request.problem.empty()) return solve_problem(command, request);
  for (const char* needed : {"SOURCE", "--mesh"}) {
    if (command.count(needed) == 0) throw CLI::RequiredError(needed);
  }
  for (const char* solving : {"--gap", "--threads"}) {
    if (command.count(solving) > 0) throw CLI::ValidationError(solving, "is for a problem from a file: --problem");
  }
  return shard(request);
}

void add_solver_options(CLI::App& command, ShardRequest& request) {
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

void add_plan_options(CLI::App& command, ShardRequest& request) {
  begin_group(command, "The plan");
  command.add_option("--mesh", request.mesh, "Devices: 8, 8x8, 4x4x4, or with names dp=8,tp=4 (required)");
  add_bytes(command, "--memory", request.memory, "Memory that a device has for the step: 80GB, 24GiB");
  add_list(command, "--pin", request.pins,
           "A layout that is given: 'layers.*.q_proj.weight=R,S(0)', 'n329=S(0),R'; repeat")
      ->check([](const std::string& text) {
        return text.find('=') == text.npos ? "'" + text + "' is not NAME=LAYOUT" : std::string();
      });
  command.add_option("--rules", request.rules, "File with sharding rules of your own, a line an operator");
  command.add_flag("--unfold", request.unfold, "Decide over layers that repeat one by one");
  command.add_flag("--recompute", request.recompute,
                   "With --memory: compute again in backward where that costs less than cutting more");
  command.add_flag("--cut-random", request.cut_random, "Random operators may be cut: each device draws its own");
  command.add_flag("--cut-vocabulary", request.cut_vocabulary,
                   "log_softmax in parts, so that a loss may be cut along the vocabulary");
  begin_group(command, "The solver");
  command.add_option("--problem", request.problem,
                     "Solve this file instead of a SOURCE: written by --export, or of IOPDDL");
  add_solver_options(command, request);
  command.add_option("--gap", request.gap, "With --problem: distance to the bound that is good enough, 0.001")
      ->check(from_0_to_1);
  command.add_option("--threads", request.threads, "With --problem: 1 or 2; the result is the same")
      ->check(one_of({"1", "2"}));
}

void add_options(CLI::App& command, ShardRequest& request) {
  add_source(command, request.capture)->required(false);
  add_capture_options(command, request.capture);
  add_spec_option(command, request.spec);
  add_interconnect_option(command, request.interconnect);
  add_plan_options(command, request);
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output,
                     "Folder for graph.sg, plan.json, answer.json and rank0.sg; with --problem: solution file");
  add_number(command, "--rank", request.rank, 0, "Whose graph is written");
  command.add_flag("--all-ranks", request.all_ranks, "Write the graphs of all devices, rank0.sg, rank1.sg, ...");
  command.add_option("--dot", request.dot, "File for a picture of the plan: layouts as colours, redistributions red");
  command.add_option("--svg", request.svg, "The same picture, rendered");
  command.add_flag("--compare", request.compare, "Also the usual plans: data parallel, fully sharded, tensor parallel");
  add_list(command, "--explain", request.explain, "What else a parameter, input or node 'n329' could be; repeat");
  add_number(command, "--rows", request.rows, 0, "Most rows of a table (0: all)");
  command.add_flag("--json", request.json, "As JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph shard llama3_8b --mesh dp=8,tp=8 --dtype bf16 --memory 80GB -o plan\n"
      "  shadowgraph shard --problem problem.json --time-limit 10 -o solution.json");
}

}  // namespace

Work declare_shard(CLI::App& command) {
  const auto request = std::make_shared<ShardRequest>();
  request->capture.mode = "train";
  add_options(command, *request);
  return [request, &command] { return shard_or_solve(command, *request); };
}

}  // namespace shadowgraph::cli
