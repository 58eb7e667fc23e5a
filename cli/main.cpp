// The shadowgraph tool: command line to commands, and errors to exit codes.
//
//   0  done      1  the input's fault      2  wrong usage      3  our fault
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <system_error>
#include <vector>

#include "cli/assign.h"
#include "cli/checkpoint.h"
#include "cli/commands.h"
#include "cli/fit.h"
#include "cli/kernels.h"
#include "cli/shard.h"
#include "cli/suggestion.h"
#include "cli/what_if.h"
#include "models/registry.h"
#include "shadowgraph/error.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/text.h"

namespace {

using shadowgraph::cli::CaptureRequest;
using shadowgraph::cli::DotRequest;
using shadowgraph::cli::ProfileRequest;

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

// CLI11's own number checks print the whole range of a double.
CLI::Validator whole_number_from(int64_t least) {
  return CLI::Validator(
      [least](const std::string& text) {
        int64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool fits = error == std::errc() && end == text.data() + text.size() && number >= least;
        return fits ? std::string() : fmt::format("'{}' is not a whole number of at least {}", text, least);
      },
      fmt::format("INT>={}", least));
}

std::optional<double> number_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::string positive_number(const std::string& text) {
  const auto number = number_of(text);
  return number && *number > 0 ? std::string() : "'" + text + "' is not a number above 0";
}

std::string from_0_to_1(const std::string& text) {
  const auto number = number_of(text);
  return number && *number >= 0 && *number <= 1 ? std::string() : "'" + text + "' is not a number from 0 to 1";
}

std::string usage_message(const CLI::App* app, const CLI::Error& error) {
  std::string command = app->get_name();
  for (const CLI::App* sub : app->get_subcommands()) command += " " + sub->get_name();
  return fmt::format("shadowgraph: {}\nRun '{} --help' for the usage.\n", error.what(), command);
}

int report(int code, const std::string& message) {
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
  const std::string near = shadowgraph::cli::closest(word, names);
  return fmt::format("there is no command '{}'{}; the commands are {}", word,
                     near.empty() ? "" : " (did you mean " + near + "?)", fmt::join(names, ", "));
}

// "512", "4k", "1k..": the number.
std::optional<int64_t> sequence_option(std::string text) {
  if (text.ends_with("..")) text.resize(text.size() - 2);
  const bool thousands = text.ends_with('k') || text.ends_with('K');
  if (thousands) text.pop_back();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > (int64_t{1} << 40))
    return std::nullopt;
  return thousands ? number * 1024 : number;
}

void add_mode_option(CLI::App& command, std::string& mode) {
  command
      .add_option(
          "--mode", mode,
          "infer: forward alone; train: forward, backward and optimizer step; of gpt2 and llama3 with a cache of "
          "keys and values: prefill, the whole prompt; decode, one token after --context others")
      ->check(CLI::IsMember({"infer", "train", "prefill", "decode"}))
      ->capture_default_str();
}

void set_mode(CaptureRequest& request, const std::string& mode) {
  request.train = mode == "train";
  if (mode == "prefill" || mode == "decode") request.generation = mode;
}

// With `profile`, a range of batches is taken too.
void add_capture_options(CLI::App& command, CaptureRequest& request, std::string& mode, ProfileRequest* profile) {
  if (profile == nullptr) {
    command.add_option("--batch", request.batch, "Batch size (default: the model's own)")->check(whole_number_from(1));
  } else {
    command
        .add_option_function<std::string>(
            "--batch",
            [&request, profile](const std::string& text) {
              profile->batches = shadowgraph::cli::parse_size_range(text);
              if (!profile->batches) request.batch = std::stoll(text);
            },
            "Batch size (default: the model's own), or a range: 1..512, 8..512:8 for a table of all of them")
        ->check([](const std::string& text) {
          return shadowgraph::cli::parse_size_range(text) ? std::string() : whole_number_from(1)(text);
        });
    command
        .add_option_function<std::string>(
            "--memory", [profile](const std::string& text) { profile->memory = shadowgraph::cli::parse_bytes(text); },
            "With a range of batches: memory of the device, 24GiB; the largest batch within it is named")
        ->check([](const std::string& text) {
          return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 24GiB";
        });
  }
  command.add_option("--seq", request.seq, "Sequence length of language models")->check(whole_number_from(1));
  add_mode_option(command, mode);
  command
      .add_option("--context", request.context,
                  "With --mode decode: tokens in the cache of keys and values before the one that is computed")
      ->check(whole_number_from(1));
  command
      .add_option("--cache", request.cache,
                  "With --mode prefill and decode: grown, every layer's keys and values concatenated with the new ones "
                  "(Hugging Face's default; what is not given), or static, allocated at full length")
      ->check(CLI::IsMember({"grown", "static"}));
  command.add_option("--optimizer", request.optimizer, "Optimizer of a training step")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  command.add_flag("--steady-state", request.steady_state,
                   "Record the second training step, with optimizer state in memory, not the first");
  command
      .add_option("--device", request.device,
                  "Device to pretend: cpu, cuda or cuda:i. It need not exist; it decides which kernels are chosen")
      ->check([](const std::string& text) {
        const bool cuda = text == "cuda" || (text.starts_with("cuda:") && text.size() > 5 && text.size() <= 7 &&
                                             text.find_first_not_of("0123456789", 5) == std::string::npos);
        return text == "cpu" || cuda ? std::string() : "'" + text + "' is not cpu, cuda or cuda:i";
      })
      ->capture_default_str();
  command.add_option("--dtype", request.dtype, "Floating-point type of parameters and inputs")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--autocast", request.autocast,
                  "torch.autocast of forward and loss: bf16 or f16; parameters keep their type")
      ->check(CLI::IsMember({"bf16", "f16"}));
  command
      .add_option("--accumulate", request.training.accumulate,
                  "Training: gradients of so many micro-batches, each of --batch, before the optimizer's step")
      ->check(whole_number_from(1));
  command
      .add_option_function<double>(
          "--clip-grad-norm", [&request](const double& norm) { request.training.clip_grad_norm = norm; },
          "Training: torch.nn.utils.clip_grad_norm_ to this norm")
      ->check(positive_number);
  command.add_flag("--grad-scaler", request.training.grad_scaler,
                   "Training: torch.amp.GradScaler; its check for infinities finds none unless --host-reads says so");
  command
      .add_option_function<double>(
          "--ema", [&request](const double& decay) { request.training.ema = decay; },
          "Training: an exponential moving average of the parameters with this decay, 0.999")
      ->check(from_0_to_1);
  command.add_flag("--zero-grads", request.training.zero_grads,
                   "Training: zero_grad(set_to_none=False), gradients stay allocated from step to step");
  command
      .add_option("--attention", request.attention,
                  "auto: the kernel that the device would take; math: never a fused one")
      ->check(CLI::IsMember({"auto", "math"}))
      ->capture_default_str();
  command
      .add_option("--input", request.inputs,
                  "Dtype and shape of one input of a TorchScript file, e.g. 'f32[8,3,224,224]'; repeat for several. A "
                  "torch.export archive knows its inputs: for other sizes only")
      ->take_all()
      ->delimiter('\0');
  command
      .add_option(
          "--host-reads", request.host_reads,
          "What the program reads and data decides: item0=2.5 by name, bool=false, int=3 or float=1.5 for all of a "
          "kind, finite (no infinities, no NaNs), mask-full (masks hide nothing); repeat for several")
      ->take_all()
      ->delimiter(',');
  command
      .add_option("--data-sizes", request.data_sizes,
                  "Sizes of results that depend on data, by the name that the error tells: nonzero0=17")
      ->take_all()
      ->delimiter(',');
  command.add_option(
      "--checkpoint", request.checkpoint,
      "Activation checkpoints: modules whose activations backward computes again, 'transformer.h.*', or auto "
      "for numbered layers; policies: opt --pass checkpoint{...}");
}

void add_what_if_options(CLI::App& command, shadowgraph::cli::WhatIfRequest& request) {
  CaptureRequest& capture = request.capture;
  command
      .add_option(
          "source", capture.source,
          "Graph file of a training step; or built-in model, TorchScript file or torch.export archive, of which a "
          "step is captured first")
      ->required();
  command.add_option("--batch", capture.batch, "Of the step that is captured: batch size")->check(whole_number_from(1));
  command.add_option("--seq", capture.seq, "Of the step that is captured: sequence length")
      ->check(whole_number_from(1));
  command.add_option("--device", capture.device, "Of the step that is captured: cpu, cuda or cuda:i")
      ->capture_default_str();
  command
      .add_option("--input", capture.inputs, "Of a TorchScript file: dtype and shape of an input; repeat for several")
      ->take_all()
      ->delimiter('\0');
  command.add_flag("--steady-state", capture.steady_state, "Of the step that is captured: the second one");
  command
      .add_option_function<std::string>(
          "--dtype",
          [&request](const std::string& text) {
            request.change.dtype = text == "bf16" ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
          },
          "What if parameters and activations were bf16 or f16 in place of f32")
      ->check(CLI::IsMember({"bf16", "f16"}));
  command
      .add_option("--optimizer", request.change.optimizer, "What if the optimizer were this one, or there were none")
      ->check(CLI::IsMember({"none", "sgd", "sgd_momentum", "adam", "adamw"}));
  command.add_option("--accumulate", request.change.accumulate, "What if so many micro-batches were accumulated")
      ->check(whole_number_from(1));
  command.add_option("--checkpoint", request.change.checkpoint,
                     "What if these modules were computed again in backward: 'transformer.h.*', auto");
  command.add_option("--zero", request.change.zero_stage, "What if ZeRO of this stage spread the step over --ranks")
      ->check(CLI::IsMember({0, 1, 2, 3}));
  command.add_option("--ranks", request.change.ranks, "Ranks of --zero")->check(whole_number_from(2));
  command.add_flag("--json", request.json, "As JSON");
}

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

void add_shard_options(CLI::App& command, shadowgraph::cli::ShardRequest& request, std::string& mode) {
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
          "--memory", [&request](const std::string& text) { request.memory = shadowgraph::cli::parse_bytes(text); },
          "Memory that a device has for the step: 80GB, 24GiB")
      ->check([](const std::string& text) {
        return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 24GiB";
      });
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

void add_assign_options(CLI::App& command, shadowgraph::cli::AssignRequest& request) {
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

void add_checkpoint_options(CLI::App& command, shadowgraph::cli::CheckpointRequest& request) {
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
          "--bytes", [&request](const std::string& text) { request.bytes = shadowgraph::cli::parse_bytes(text); },
          "The least to compute again so that the peak of live bytes is at most this: 40GB, 24GiB")
      ->check([](const std::string& text) {
        return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 24GiB";
      });
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
            request.link_bandwidth = static_cast<double>(shadowgraph::cli::parse_bytes(text).value_or(0));
          },
          "With --cost time: what a link to the host carries in a second, each way, 25GB; kept tensors may then wait "
          "for "
          "backward on the host")
      ->check([](const std::string& text) {
        return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 25GB";
      });
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
void add_kernels_commands(CLI::App& command, shadowgraph::cli::KernelsRequest& request) {
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
          "--max-bytes",
          [&request](const std::string& text) { request.max_bytes = *shadowgraph::cli::parse_bytes(text); },
          "What may stay: 100MB, 1GiB")
      ->required()
      ->check([](const std::string& text) {
        return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 100MB";
      });
}

// False if `verify` found something broken.
bool run_kernels(const CLI::App& command, const shadowgraph::cli::KernelsRequest& request) {
  const std::string name = command.get_subcommands().front()->get_name();
  if (name == "list") shadowgraph::cli::list_kernels(request);
  if (name == "prune") shadowgraph::cli::prune_kernels(request);
  if (name == "clear") shadowgraph::cli::clear_kernels(request);
  return name != "verify" || shadowgraph::cli::verify_kernels(request);
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
  profile
      ->add_option("source", profile_request.capture.source,
                   "Built-in model, TorchScript file, torch.export archive, or graph file")
      ->required();
  profile->add_option("-o,--output", profile_request.directory,
                      "Folder for graph.sg, profile.json, graph.dot and graph.svg");
  profile->add_flag("--json", profile_request.json, "Print one JSON object instead of tables");
  profile->add_option("--group", profile_request.group, "Rows of the table: module, composite or operator")
      ->check(CLI::IsMember({"module", "composite", "operator"}))
      ->capture_default_str();
  profile->add_option("--depth", profile_request.depth, "Module levels in the table (0: what fits)")
      ->check(whole_number_from(0));
  profile->add_option("--rows", profile_request.rows, "Most rows of the table (0: all)")
      ->check(whole_number_from(0))
      ->capture_default_str();
  add_capture_options(*profile, profile_request.capture, profile_mode, &profile_request);
  profile->add_flag("--measure", profile_request.measure,
                    "Run each distinct call once on this machine's CPU, for scratch memory inside kernels and seconds; "
                    "kept for the next time");
  profile->add_option(
      "--spec", profile_request.spec,
      "Device that the time is estimated for: a name of 'shadowgraph devices', or a file (default: h100 for "
      "cuda, this machine's calibration for cpu)");
  profile->add_option("--interconnect", profile_request.interconnect,
                      "Links between processes: a100, h100, h200, b200, mi300x, pcie4, pcie5, or a file (default: what "
                      "is usual around the device of --spec)");
  profile
      ->add_option("--mesh", profile_request.mesh,
                   "Sizes of process groups that the graph names and does not describe: dp=8,tp=4")
      ->type_name("NAME=SIZE,...");
  profile->add_option("--allocator", profile_request.allocator,
                      "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them: expandable_segments:True");
  profile->add_flag(
      "--run", profile_request.run,
      "Training: also record the first three steps of a run, and say what each holds: the first step, the "
      "second, the steady state");
  profile
      ->add_option_function<std::string>(
          "--device-memory",
          [&](const std::string& text) {
            profile_request.device_memory = shadowgraph::cli::parse_bytes(text);
            if (!profile_request.device_memory)
              throw CLI::ValidationError("--device-memory", "'" + text + "' is no size like 80GiB");
          },
          "Memory of the device, 80GiB: says so if the step does not fit")
      ->type_name("BYTES");

  shadowgraph::cli::ReportRequest report_request;
  std::string report_mode = "infer";
  auto* page = app.add_subcommand(
      "report", "Write a page to open in a browser: the graph, the memory over the step, tables, findings");
  page->add_option("source", report_request.profile.capture.source,
                   "Built-in model, TorchScript file, torch.export archive, or graph file")
      ->required();
  page->add_option("-o,--output", report_request.output, "HTML file to write; it needs no other")->required();
  page->add_option("--compare", report_request.compare,
                   "What it was before: a graph file, or another model, captured with the same options");
  page->add_option("--title", report_request.title, "Title of the page (default: the model, or the file)");
  add_capture_options(*page, report_request.profile.capture, report_mode, nullptr);
  page->add_option("--spec", report_request.profile.spec,
                   "Device that the time is estimated for: a name of 'shadowgraph devices', or a file");
  page->add_option("--interconnect", report_request.profile.interconnect, "Links between processes, as for profile");
  page->add_option("--mesh", report_request.profile.mesh, "Sizes of process groups, as for profile: dp=8,tp=4")
      ->type_name("NAME=SIZE,...");
  page->add_option("--allocator", report_request.profile.allocator,
                   "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them");

  shadowgraph::cli::FitRequest fit_request;
  std::string fit_mode = "train";
  auto* fit =
      app.add_subcommand("fit",
                         "Find the largest batch, the longest sequence or, with --mode decode, the longest context "
                         "that fits into a device's memory");
  fit->add_option("model", fit_request.capture.source, "Built-in model")->required();
  fit->add_option_function<std::string>(
         "--memory", [&](const std::string& text) { fit_request.memory = *shadowgraph::cli::parse_bytes(text); },
         "Memory of the device: 80GB, 24GiB")
      ->required()
      ->check([](const std::string& text) {
        return shadowgraph::cli::parse_bytes(text) ? std::string() : "'" + text + "' is no size such as 24GiB";
      });
  add_capture_options(*fit, fit_request.capture, fit_mode, nullptr);
  fit->remove_option(fit->get_option("--seq"));
  fit->remove_option(fit->get_option("--mode"));
  add_mode_option(*fit, fit_mode);
  fit->add_option_function<std::string>(
         "--seq",
         [&](const std::string& text) {
           const auto size = sequence_option(text);
           if (text.ends_with("..")) {
             fit_request.longest_from = size;
           } else {
             fit_request.capture.seq = *size;
           }
         },
         "Sequence length, 512; or 1k.. for the longest one from there on, at --batch")
      ->check([](const std::string& text) {
        return sequence_option(text) ? std::string()
                                     : "'" + text + "' is neither a length such as 512 or 1k nor a range such as 1k..";
      });
  fit->add_option("--with-checkpoint", fit_request.checkpoints,
                  "Also with these modules computed again in backward: auto, 'layers.*'; repeat for several");
  fit->add_option("--allocator", fit_request.allocator,
                  "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them");
  fit->add_flag("--json", fit_request.json, "As JSON, key batch (or seq, or context)");

  shadowgraph::cli::WhatIfRequest what_if_request;
  auto* whatif = app.add_subcommand(
      "whatif",
      "What a training step would hold with another dtype, optimizer, accumulation, checkpoints or ZeRO, "
      "without running it again");
  add_what_if_options(*whatif, what_if_request);

  shadowgraph::cli::ShardRequest shard_request;
  std::string shard_mode = "train";
  auto* shard = app.add_subcommand(
      "shard", "Find out how the tensors of a step are best laid out over many devices, and what that costs");
  add_shard_options(*shard, shard_request, shard_mode);

  shadowgraph::cli::CheckpointRequest checkpoint_request;
  std::string checkpoint_mode = "train";
  auto* checkpoint = app.add_subcommand(
      "checkpoint",
      "The least that backward of a training step has to compute again for a peak; the curve of all peaks");
  add_checkpoint_options(*checkpoint, checkpoint_request);
  add_capture_options(*checkpoint, checkpoint_request.capture, checkpoint_mode, nullptr);
  shadowgraph::cli::AssignRequest assign_request;
  auto* assign =
      app.add_subcommand("assign", "Solve an assignment problem from a file: what 'shard' solves, or IOPDDL's");
  add_assign_options(*assign, assign_request);

  shadowgraph::cli::KernelsRequest kernels_request;
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

  shadowgraph::cli::CalibrateRequest calibrate_request;
  auto* calibrate = app.add_subcommand("calibrate", "Measure what this machine's CPU does, for estimated times");
  calibrate->add_option("-o,--output", calibrate_request.output, "File to write (default: where profile looks for it)");

  auto* devices = app.add_subcommand("devices", "List the devices whose times can be estimated");
  devices->add_flag("--json", json, "As JSON, with all figures and their sources");

  shadowgraph::cli::MaterializeRequest materialize_request;
  auto* materialize =
      app.add_subcommand("materialize", "Write initial weights of a built-in model, or some of them, for torch.load");
  materialize->add_option("model", materialize_request.model, "Built-in model")->required();
  materialize->add_option("--only", materialize_request.only,
                          "Names to write, as a shell pattern: '*layers.3.*'; repeat for several (default: all)");
  materialize->add_option("-o,--output", materialize_request.output, "File to write")->required();
  materialize->add_option("--seed", materialize_request.seed, "What building the model starts from: torch::manual_seed")
      ->check(whole_number_from(0))
      ->capture_default_str();
  materialize->add_option("--dtype", materialize_request.dtype, "Floating-point type of the parameters")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  materialize->footer(
      "The model is described, not built: only what is written is computed, one tensor at a time, with the very "
      "numbers\n"
      "that building the whole model after torch::manual_seed(seed) gives.");

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
  dot->add_option("graph", dot_request.file, "Graph file")->required();
  dot->add_flag("--svg", dot_request.svg, "SVG, laid out by Graphviz, rather than DOT");
  dot->add_option("-o,--output", dot_request.output, "File to write (default: stdout)");
  dot->add_option("--depth", dot_request.depth, "Module levels to open (default: what stays readable)")
      ->check(whole_number_from(0));
  dot->add_flag("--unfold", dot_request.unfold, "Draw repeated layers one by one");
  dot->add_flag("--all-phases", dot_request.all_phases, "Draw backward and optimizer too");
  dot->add_option("--phase", dot_request.phases, "Draw this phase (repeat for several): forward, backward, optimizer");
  dot->add_flag("--views", dot_request.views, "Draw views and other plumbing too");
  dot->add_option("--around", dot_request.around,
                  "Draw what is near this: a node (n12), a value (%7), a module's path, a parameter, an operator")
      ->type_name("NODE");
  dot->add_option("--radius", dot_request.radius, "With --around: steps along tensors, either way")
      ->check(whole_number_from(0))
      ->capture_default_str();
  dot->add_option("--path", dot_request.path, "Draw the ways of tensors from one to the other")
      ->type_name("FROM TO")
      ->expected(2);
  dot->add_option("--color", dot_request.color,
                  "operator; flops, bytes (moved), allocated, memory (kept for backward), time; device, phase, module")
      ->capture_default_str();
  dot->add_option("--spec", dot_request.profile.spec, "With --color time: the device, as of 'profile'");
  dot->add_option("--diff", dot_request.before, "Mark what differs from this graph file: added, removed, changed")
      ->type_name("BEFORE");
  dot->add_option("--rows", dot_request.rows,
                  "Boxes below one another before the picture folds further by itself (0: any number)")
      ->check(whole_number_from(0))
      ->capture_default_str();

  auto* passes = app.add_subcommand("passes", "List the passes that opt can run");
  passes->add_flag("--json", json, "As JSON");

  shadowgraph::cli::OptimizeRequest opt_request;
  bool no_check = false;
  auto* opt = app.add_subcommand("opt", "Run passes on a graph file");
  opt->add_option("graph", opt_request.file, "Graph file")->required();
  opt->add_option("--pass", opt_request.passes, "Passes in order, with options: dce{random=drop},cse")->required();
  opt->add_option("-o,--output", opt_request.output, "Graph file to write (default: stdout)");
  opt->add_flag("--json", opt_request.json, "Print the report as JSON; wants -o");
  opt->add_flag("--no-check", no_check, "Do not verify the graph after each pass");
  opt->footer("SHADOWGRAPH_DUMP=folder writes the graph before and after every pass there.");

  shadowgraph::cli::CodegenRequest codegen_request;
  auto* codegen = app.add_subcommand("codegen", "Write a graph file as C++ or Python code");
  codegen->add_option("graph", codegen_request.file, "Graph file")->required();
  codegen->add_option("-o,--output", codegen_request.directory, "Folder to write to; made if it is not there")
      ->required();
  codegen->add_option("--lang", codegen_request.language, "cpp: against libtorch alone; python: over torch.ops")
      ->check(CLI::IsMember({"cpp", "python"}))
      ->capture_default_str();
  codegen->add_option("--name,--namespace", codegen_request.name,
                      "Name of the files and the namespace (default: the graph file's)");
  codegen
      ->add_option("--only", codegen_request.only,
                   "Only what this value needs: %12 as the text numbers it, output0, gradient.layer.weight, or a "
                   "pattern with * (repeat for several)")
      ->take_all();
  codegen->add_option("--device", codegen_request.device, "Every device of the graph as this one: cpu, cuda, cuda:i")
      ->check([](const std::string& text) {
        const auto device = shadowgraph::parse_device(text);
        return device && (device->is_cpu() || device->is_cuda()) ? std::string()
                                                                 : "'" + text + "' is not cpu, cuda or cuda:i";
      });
  codegen
      ->add_option("--function", codegen_request.functions,
                   "What the code calls for a function of your own: my::op=library::callee@header.h, in Python "
                   "my::op=callee@module (repeat for several)")
      ->take_all()
      ->check([](const std::string& text) {
        return text.find('=') == text.npos ? "'" + text + "' is not NAME=CALLEE or NAME=CALLEE@FROM" : std::string();
      });
  codegen->add_flag("--autograd", codegen_request.autograd,
                    "Forward graphs: code that autograd differentiates; checkpoint regions are recomputed in backward");

  if (argc > 1) {
    if (const auto message = unknown_command(app, argv[1])) return report(kUsage, *message);
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

  if (*models) shadowgraph::cli::list_models(json);
  if (*capture) {
    set_mode(capture_request, capture_mode);
    shadowgraph::cli::capture_to_file(capture_request, capture_output, json);
  }
  if (*profile) {
    set_mode(profile_request.capture, profile_mode);
    shadowgraph::cli::profile(profile_request);
  }
  if (*page) {
    set_mode(report_request.profile.capture, report_mode);
    shadowgraph::cli::report(report_request);
  }
  if (*fit) {
    set_mode(fit_request.capture, fit_mode);
    shadowgraph::cli::fit(fit_request);
  }
  if (*whatif) shadowgraph::cli::what_if(what_if_request);
  if (*shard) {
    set_mode(shard_request.capture, shard_mode);
    shadowgraph::cli::shard(shard_request);
  }
  if (*checkpoint) {
    set_mode(checkpoint_request.capture, checkpoint_mode);
    shadowgraph::cli::checkpoint(checkpoint_request);
  }
  if (*assign) shadowgraph::cli::assign(assign_request);
  const bool broken = *kernels && !run_kernels(*kernels, kernels_request);
  if (*compare) shadowgraph::cli::compare(compare_before, compare_after, compare_limit, compare_json);
  if (*calibrate) shadowgraph::cli::calibrate(calibrate_request);
  if (*devices) shadowgraph::cli::list_devices(json);
  if (*materialize) shadowgraph::cli::materialize(materialize_request);
  if (*print) shadowgraph::cli::print_graph(file, preset, json);
  if (*verify) shadowgraph::cli::verify_graph(file);
  const bool differ = *diff && shadowgraph::cli::diff_graphs(file, other_file, diff_limit);
  if (*dot) shadowgraph::cli::draw(dot_request);
  if (*passes) shadowgraph::cli::list_passes(json);
  if (*opt) {
    opt_request.check = !no_check;
    shadowgraph::cli::optimize(opt_request);
  }
  if (*codegen) shadowgraph::cli::generate_code(codegen_request);
  // A full disk or a closed stdout shows here at the latest.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw shadowgraph::FileError("cannot write to the standard output: " + std::generic_category().message(errno));
  }
  if (broken) return kInputFault;
  return differ ? kDifferent : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const shadowgraph::EnvironmentError& error) {
    return report(kOurFault, error.what());
  } catch (const shadowgraph::PipelineError& error) {
    return report(kUsage, error.what());
  } catch (const shadowgraph::PassBugError& error) {
    return report(kOurFault, error.what());
  } catch (const shadowgraph::Error& error) {
    return report(kInputFault, error.what());
  } catch (const std::invalid_argument& error) {
    return report(kInputFault, error.what());
  } catch (const c10::Error& error) {
    return report(kInputFault, plain(error));
  } catch (const std::bad_alloc&) {
    return report(kInputFault, "out of memory");
  } catch (const std::exception& error) {
    return report(kOurFault, std::string("internal error: ") + error.what());
  }
}
