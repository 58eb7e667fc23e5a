#include "cli/plan_options.h"

#include "cli/model_options.h"
#include "cli/option_checks.h"

namespace shadowgraph::cli {

// What `shard` and `assign` share: who solves, the time that may be taken, and the problem as a file.
template <class Request>
void add_solver_options(CLI::App& command, Request& request, std::string& exported) {
  command
      .add_option("--solver", request.solver,
                  "own: the built-in search; highs: HiGHS, from the Python package highspy; both: HiGHS for what the "
                  "search leaves open in half of the time. HiGHS also says which pins contradict each other")
      ->check(CLI::IsMember({"own", "highs", "both"}))
      ->capture_default_str();
  command.add_option("--highs", request.highs,
                     "HiGHS' library libhighs.so.1 or its folder (default: $SHADOWGRAPH_HIGHS, else beside libtorch)");
  command.add_option("--time-limit", request.time_limit, "Seconds for the solver")
      ->check(positive_number)
      ->capture_default_str();
  command.add_option("--export", exported, "File to write the problem to, for other solvers");
  command.add_option("--format", request.format, "Of --export: json, iopddl, lp or mps")
      ->check(CLI::IsMember({"json", "iopddl", "lp", "mps"}))
      ->capture_default_str();
}

void add_shard_options(CLI::App& command, ShardRequest& request, std::string& mode) {
  command
      .add_option(
          "source", request.capture.source,
          "Graph file; or built-in model, TorchScript file or torch.export archive, of which a step is captured "
          "first")
      ->required();
  command.add_option("--mesh", request.mesh, "Devices: 8, 8x8, 4x4x4, or with names dp=8,tp=4")->required();
  add_capture_options(command, request.capture, mode, nullptr);
  command.add_option("--spec", request.spec,
                     "Device: a name of 'shadowgraph devices', or a file (default: h100 for cuda, this machine's "
                     "calibration for cpu)");
  command.add_option("--interconnect", request.interconnect,
                     "Links between devices: a100, h100, h200, b200, mi300x, pcie4, pcie5, or a file (default: what is "
                     "usual around the device)");
  command
      .add_option_function<std::string>(
          "--memory", [&request](const std::string& text) { request.memory = parse_bytes(text); },
          "Memory that a device has for the step: 80GB, 24GiB")
      ->check(size_like("24GiB"));
  command
      .add_option(
          "--pin", request.pins,
          "A layout that is given: 'layers.*.q_proj.weight=R,S(0)', or of a node's first result: 'n329=S(0),R'; "
          "repeat for several")
      ->take_all()
      ->delimiter('\0')
      ->check([](const std::string& text) {
        return text.find('=') == text.npos ? "'" + text + "' is not NAME=LAYOUT" : std::string();
      });
  command.add_option("--rules", request.rules, "File with sharding rules of your own, a line an operator");
  command.add_flag("--unfold", request.unfold, "Decide over layers that repeat one by one");
  command.add_flag(
      "--recompute", request.recompute,
      "With --memory: also compute again in backward what is not kept, if that costs less than cutting more");
  command.add_flag("--cut-random", request.cut_random,
                   "Random operators may be cut: each device draws its own numbers");
  command.add_flag("--cut-vocabulary", request.cut_vocabulary,
                   "log_softmax as a maximum, exponentials and a sum, so that a loss may be cut along the vocabulary");
  command.add_flag("--compare", request.compare,
                   "Also the plans that people write by hand: data parallel, fully sharded, tensor parallel");
  command
      .add_option("--explain", request.explain,
                  "What else a parameter, input or node could be, and what that would cost: 'n329', "
                  "'layers.0.mlp.up_proj.weight'; repeat for several")
      ->take_all();
  command.add_option("--rows", request.rows, "Most rows of a table (0: all)")
      ->check(whole_number_from(0))
      ->capture_default_str();
  command.add_option("-o,--output", request.directory,
                     "Folder for plan.json, answer.json, graph.sg (what the plan is of) and the graph of one device, "
                     "rank0.sg");
  command.add_option("--rank", request.rank, "Whose graph is written")
      ->check(whole_number_from(0))
      ->capture_default_str();
  command.add_flag("--all-ranks", request.all_ranks, "Write the graphs of all devices, rank0.sg, rank1.sg, ...");
  command.add_option("--dot", request.dot,
                     "File for a picture of the plan: coloured by layout, redistributions marked with their bytes");
  command.add_option("--svg", request.svg, "The same picture, rendered");
  add_solver_options(command, request, request.problem);
  command.add_flag("--json", request.json, "As JSON");
}

void add_assign_options(CLI::App& command, AssignRequest& request) {
  command.add_option("problem", request.problem, "File with the problem: written by --export, or of IOPDDL")
      ->required();
  command.add_option("-o,--output", request.output, "File to write the solution to, as JSON");
  add_solver_options(command, request, request.exported);
  command.add_option("--gap", request.gap, "Relative distance to the bound that is good enough: 0.001")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--threads", request.threads, "Of the search; the result is the same")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  command.add_flag("--json", request.json, "As JSON");
}

void add_checkpoint_options(CLI::App& command, CheckpointRequest& request) {
  command
      .add_option(
          "source", request.capture.source,
          "Graph file of a training step; or built-in model, TorchScript file or torch.export archive, of which a "
          "step is captured first")
      ->required();
  command.add_flag("--pareto", request.pareto,
                   "The curve: peaks that can be had, and what each takes to compute again");
  command
      .add_option_function<std::string>(
          "--bytes", [&request](const std::string& text) { request.bytes = parse_bytes(text); },
          "The least to compute again so that the peak of live bytes is at most this: 40GB, 24GiB")
      ->check(size_like("24GiB"));
  command.add_option("-o,--output", request.output, "With --bytes: graph file of the step with that plan");
  command.add_option("--svg", request.picture, "File for a picture of the curve");
  command.add_option(
      "--modules", request.modules,
      "Modules that are computed again as a whole or in part, 'transformer.h.*', or auto (default: where "
      "forward goes through one tensor)");
  command
      .add_option_function<std::string>(
          "--cost", [&request](const std::string& text) { request.by_time = text == "time"; },
          "What is to be least: flops, or the time on the device of --spec (default: flops)")
      ->check(CLI::IsMember({"flops", "time"}));
  command.add_option("--spec", request.spec,
                     "Device that times are estimated for: a name of 'shadowgraph devices', or a file");
  command
      .add_option_function<std::string>(
          "--link-bandwidth",
          [&request](const std::string& text) {
            request.link_bandwidth = static_cast<double>(parse_bytes(text).value_or(0));
          },
          "With --cost time: what a link to the host carries in a second, each way, 25GB; kept tensors may then wait "
          "for "
          "backward on the host")
      ->check(size_like("25GB"));
  command.add_option("--chain", request.chain, "JSON file: the step as a chain of stages, for solvers of one's own");
  command.add_option("--module-statistics", request.module_statistics,
                     "JSON file: what torch.distributed._tools.sac_ilp is given of modules");
  command.add_flag("--json", request.json, "As JSON");
}

CLI::Option* add_cache_directory(CLI::App& command, std::string& directory) {
  return command.add_option("--dir", directory,
                            "Folder of the cache (default: $SHADOWGRAPH_CACHE, $XDG_CACHE_HOME/shadowgraph or "
                            "~/.cache/shadowgraph)");
}

// list, verify, prune and clear; exactly one of them.
void add_kernels_commands(CLI::App& command, KernelsRequest& request) {
  command.require_subcommand(1);
  auto* list = command.add_subcommand("list", "Show what the cache holds, an operator a line");
  auto* verify =
      command.add_subcommand("verify", "Compare every library with its manifest (exit code 1: some are broken)");
  auto* prune = command.add_subcommand("prune", "Erase what is broken, and what was not used for longest");
  auto* clear = command.add_subcommand("clear", "Erase all kernels");
  for (CLI::App* each : {list, verify, prune, clear}) add_cache_directory(*each, request.directory);
  for (CLI::App* each : {list, verify}) each->add_flag("--json", request.json, "As JSON, an entry for each kernel");
  for (CLI::App* each : {prune, clear})
    each->add_flag("--dry-run", request.dry_run, "Say what would go, erase nothing");
  prune
      ->add_option_function<std::string>(
          "--max-bytes", [&request](const std::string& text) { request.max_bytes = *parse_bytes(text); },
          "What may stay: 100MB, 1GiB")
      ->required()
      ->check(size_like("100MB"));
}

// False if `verify` found something broken.
bool run_kernels(const CLI::App& command, const KernelsRequest& request) {
  const std::string name = command.get_subcommands().front()->get_name();
  if (name == "list") list_kernels(request);
  if (name == "prune") prune_kernels(request);
  if (name == "clear") clear_kernels(request);
  return name != "verify" || verify_kernels(request);
}

}  // namespace shadowgraph::cli
