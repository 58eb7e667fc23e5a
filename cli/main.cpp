// The shadowgraph tool: command line to commands, and errors to exit codes.
//
//   0  done      1  the input's fault      2  wrong usage      3  our fault
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <vector>

#include "cli/assign.h"
#include "cli/checkpoint.h"
#include "cli/commands.h"
#include "cli/fit.h"
#include "cli/graph_options.h"
#include "cli/kernels.h"
#include "cli/model_options.h"
#include "cli/option_checks.h"
#include "cli/plan_options.h"
#include "cli/shard.h"
#include "cli/suggestion.h"
#include "cli/what_if.h"
#include "models/registry.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

constexpr int kInputFault = 1;
constexpr int kDifferent = 1;  // of `diff`, as diff(1) has it
constexpr int kUsage = 2;
constexpr int kOurFault = 3;

constexpr const char* kAbout =
    "shadowgraph: capture and profile PyTorch programs on fake tensors.\n"
    "\n"
    "Runs a model without a GPU and without allocating it, records forward, backward and optimizer step as one graph,\n"
    "and answers from that graph: shapes, what autograd saves, peak memory and when, FLOPs, cost per layer.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  shadowgraph models\n"
    "  shadowgraph profile resnet50 --mode train --batch 32 --device cuda -o out/resnet50\n"
    "  shadowgraph profile resnet50 --mode train --batch 1..256 --memory 24GiB\n"
    "  shadowgraph profile llama3_8b --mode train --optimizer adamw --dtype bf16 --seq 4096 --json\n"
    "  shadowgraph profile gpt2 --mode train --checkpoint 'transformer.h.*'\n"
    "  shadowgraph checkpoint gpt2 --batch 8 --seq 1024 --pareto --svg curve.svg\n"
    "  shadowgraph profile net.pt --input 'f32[8,3,224,224]' --mode train\n"
    "  shadowgraph profile net.pt2 --mode train\n"
    "  shadowgraph capture gpt2 --mode train -o gpt2.sg\n"
    "  shadowgraph print gpt2.sg | less\n"
    "  shadowgraph report gpt2.sg -o gpt2.html\n"
    "  shadowgraph dot gpt2.sg --svg -o gpt2.svg\n"
    "  shadowgraph opt gpt2.sg --pass canonicalize,cse,dce -o small.sg\n"
    "  shadowgraph materialize llama3_70b --only 'layers.3.mlp.*' --dtype bf16 -o part.pt\n"
    "  shadowgraph codegen gpt2.sg --lang cpp -o gpt2_step\n"
    "\n"
    "Exit codes: 0 done, 1 the input's fault, 2 wrong usage, 3 a bug of ours.\n";

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  std::string command = app->get_name();
  for (const CLI::App* sub : app->get_subcommands()) command += " " + sub->get_name();
  return fmt::format("shadowgraph: {}\nRun '{} --help' for the usage.\n", error.what(), command);
}

int complain(int code, const std::string& message) {
  std::fputs(("shadowgraph: " + message + "\n").c_str(), stderr);
  return code;
}

// An unknown first word; CLI11 would only say that a command is missing.
std::optional<std::string> unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  if (word.starts_with('-') || std::find(names.begin(), names.end(), word) != names.end()) return std::nullopt;
  const std::string near = closest(word, names);
  return fmt::format("there is no command '{}'{}; the commands are {}", word,
                     near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", "));
}

// The first lines of a libtorch error are the message; what follows is for its developers.
std::string plain(const c10::Error& error) { return error.what_without_backtrace(); }

int run(int argc, char** argv) {
  CLI::App app{kAbout, "shadowgraph"};
  app.set_version_flag("--version", std::string("shadowgraph ") + SHADOWGRAPH_VERSION);
  app.require_subcommand(1);
  app.footer(kExamples);
  app.get_formatter()->column_width(32);
  app.failure_message(usage_message);

  bool json = false;
  auto* models = app.add_subcommand("models", "List the built-in models");
  models->add_flag("--json", json, "As JSON");

  CaptureRequest capture_request;
  std::string capture_mode = "infer";
  std::string capture_output;
  auto* capture = app.add_subcommand("capture", "Capture a model into a graph file");
  capture->add_option("model", capture_request.source, "Built-in model, TorchScript file or torch.export archive")
      ->required();
  capture->add_option("-o,--output", capture_output, "Graph file to write")->required();
  capture->add_flag("--json", json, "Write the graph as JSON rather than text");
  add_capture_options(*capture, capture_request, capture_mode, nullptr);

  ProfileRequest profile_request;
  std::string profile_mode = "infer";
  auto* profile =
      app.add_subcommand("profile", "Profile a model, a TorchScript or torch.export file, or a saved graph");
  add_profile_options(*profile, profile_request, profile_mode);

  ReportRequest report_request;
  std::string report_mode = "infer";
  auto* page = app.add_subcommand(
      "report", "Write a page to open in a browser: the graph, the memory over the step, tables, findings");
  add_report_options(*page, report_request, report_mode);

  FitRequest fit_request;
  std::string fit_mode = "train";
  auto* fit =
      app.add_subcommand("fit",
                         "Find the largest batch, the longest sequence or, with --mode decode, the longest context "
                         "that fits into a device's memory");
  add_fit_options(*fit, fit_request, fit_mode);

  WhatIfRequest what_if_request;
  auto* whatif = app.add_subcommand(
      "whatif",
      "What a training step would hold with another dtype, optimizer, accumulation, checkpoints or ZeRO, "
      "without running it again");
  add_what_if_options(*whatif, what_if_request);

  ShardRequest shard_request;
  std::string shard_mode = "train";
  auto* shard = app.add_subcommand(
      "shard", "Find out how the tensors of a step are best laid out over many devices, and what that costs");
  add_shard_options(*shard, shard_request, shard_mode);

  CheckpointRequest checkpoint_request;
  std::string checkpoint_mode = "train";
  auto* checkpoint = app.add_subcommand(
      "checkpoint",
      "The least that backward of a training step has to compute again for a peak; the curve of all peaks");
  add_checkpoint_options(*checkpoint, checkpoint_request);
  add_capture_options(*checkpoint, checkpoint_request.capture, checkpoint_mode, nullptr);
  AssignRequest assign_request;
  auto* assign =
      app.add_subcommand("assign", "Solve an assignment problem from a file: what 'shard' solves, or IOPDDL's");
  add_assign_options(*assign, assign_request);

  KernelsRequest kernels_request;
  auto* kernels = app.add_subcommand("kernels", "Look at and tidy the folder of kernels that were made on demand");
  add_kernels_commands(*kernels, kernels_request);

  bool compare_json = false;
  std::string compare_before, compare_after;
  size_t compare_limit = 10;
  auto* compare = app.add_subcommand("compare", "Show what grew, and where, between two graphs or profiles");
  compare->add_option("before", compare_before, "Graph file, or profile.json")->required();
  compare->add_option("after", compare_after, "Graph file, or profile.json")->required();
  compare->add_option("--limit", compare_limit, "Most lines of a list (0: all)")
      ->check(whole_number_from(0))
      ->capture_default_str();
  compare->add_flag("--json", compare_json, "As JSON");

  CalibrateRequest calibrate_request;
  auto* calibrate = app.add_subcommand("calibrate", "Measure what this machine's CPU does, for estimated times");
  calibrate->add_option("-o,--output", calibrate_request.output, "File to write (default: where profile looks for it)");

  auto* devices = app.add_subcommand("devices", "List the devices whose times can be estimated");
  devices->add_flag("--json", json, "As JSON, with all figures and their sources");

  MaterializeRequest materialize_request;
  auto* materialize =
      app.add_subcommand("materialize", "Write initial weights of a built-in model, or some of them, for torch.load");
  add_materialize_options(*materialize, materialize_request);

  std::string file;
  std::string preset = "canonical";
  auto* print = app.add_subcommand("print", "Print a graph file as text");
  print->add_option("graph", file, "Graph file")->required();
  print->add_option("--preset", preset, "canonical: everything, reads back; short: for people; fingerprint: structure")
      ->check(CLI::IsMember({"canonical", "short", "fingerprint"}))
      ->capture_default_str();
  print->add_flag("--json", json, "As JSON");

  auto* verify = app.add_subcommand("verify", "Check a graph file against every invariant");
  verify->add_option("graph", file, "Graph file")->required();

  std::string other_file;
  size_t diff_limit = 200;
  auto* diff = app.add_subcommand("diff", "Show which nodes differ between two graph files");
  diff->add_option("before", file, "Graph file")->required();
  diff->add_option("after", other_file, "Graph file")->required();
  diff->add_option("--limit", diff_limit, "Most nodes to show (0: all)")
      ->check(whole_number_from(0))
      ->capture_default_str();
  diff->footer("Exit codes: 0 no difference, 1 the graphs differ (or a file is no graph: then stderr says so).");

  DotRequest dot_request;
  auto* dot = app.add_subcommand("dot", "Draw a graph file as DOT or SVG");
  add_dot_options(*dot, dot_request);

  auto* passes = app.add_subcommand("passes", "List the passes that opt can run");
  passes->add_flag("--json", json, "As JSON");

  OptimizeRequest opt_request;
  bool no_check = false;
  auto* opt = app.add_subcommand("opt", "Run passes on a graph file");
  opt->add_option("graph", opt_request.file, "Graph file")->required();
  opt->add_option("--pass", opt_request.passes, "Passes in order, with options: dce{random=drop},cse")->required();
  opt->add_option("-o,--output", opt_request.output, "Graph file to write (default: stdout)");
  opt->add_flag("--json", opt_request.json, "Print the report as JSON; wants -o");
  opt->add_flag("--no-check", no_check, "Do not verify the graph after each pass");
  opt->footer("SHADOWGRAPH_DUMP=folder writes the graph before and after every pass there.");

  CodegenRequest codegen_request;
  auto* codegen = app.add_subcommand("codegen", "Write a graph file as C++ or Python code");
  add_codegen_options(*codegen, codegen_request);

  if (argc > 1) {
    if (const auto message = unknown_command(app, argv[1])) return complain(kUsage, *message);
  }
  try {
    app.parse(argc, argv);
    if (opt_request.json && opt_request.output.empty()) {
      throw CLI::ValidationError("--json", "stdout cannot hold both the graph and the report; name a file with -o");
    }
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return kUsage;
  }

  if (*models) list_models(json);
  if (*capture) {
    set_mode(capture_request, capture_mode);
    capture_to_file(capture_request, capture_output, json);
  }
  if (*profile) {
    set_mode(profile_request.capture, profile_mode);
    cli::profile(profile_request);
  }
  if (*page) {
    set_mode(report_request.profile.capture, report_mode);
    cli::report(report_request);
  }
  if (*fit) {
    set_mode(fit_request.capture, fit_mode);
    cli::fit(fit_request);
  }
  if (*whatif) what_if(what_if_request);
  if (*shard) {
    set_mode(shard_request.capture, shard_mode);
    cli::shard(shard_request);
  }
  if (*checkpoint) {
    set_mode(checkpoint_request.capture, checkpoint_mode);
    cli::checkpoint(checkpoint_request);
  }
  if (*assign) cli::assign(assign_request);
  const bool broken = *kernels && !run_kernels(*kernels, kernels_request);
  if (*compare) cli::compare(compare_before, compare_after, compare_limit, compare_json);
  if (*calibrate) cli::calibrate(calibrate_request);
  if (*devices) list_devices(json);
  if (*materialize) cli::materialize(materialize_request);
  if (*print) print_graph(file, preset, json);
  if (*verify) verify_graph(file);
  const bool differ = *diff && diff_graphs(file, other_file, diff_limit);
  if (*dot) draw(dot_request);
  if (*passes) list_passes(json);
  if (*opt) {
    opt_request.check = !no_check;
    optimize(opt_request);
  }
  if (*codegen) generate_code(codegen_request);
  // A full disk or a closed stdout shows here at the latest.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw shadowgraph::FileError("cannot write to the standard output: " + std::generic_category().message(errno));
  }
  if (broken) return kInputFault;
  return differ ? kDifferent : 0;
}

int run_or_complain(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const EnvironmentError& error) {
    return complain(kOurFault, error.what());
  } catch (const PipelineError& error) {
    return complain(kUsage, error.what());
  } catch (const PassBugError& error) {
    return complain(kOurFault, error.what());
  } catch (const Error& error) {
    return complain(kInputFault, error.what());
  } catch (const std::invalid_argument& error) {
    return complain(kInputFault, error.what());
  } catch (const c10::Error& error) {
    return complain(kInputFault, plain(error));
  } catch (const std::bad_alloc&) {
    return complain(kInputFault, "out of memory");
  } catch (const std::exception& error) {
    return complain(kOurFault, std::string("internal error: ") + error.what());
  }
}

}  // namespace
}  // namespace shadowgraph::cli

int main(int argc, char** argv) { return shadowgraph::cli::run_or_complain(argc, argv); }
