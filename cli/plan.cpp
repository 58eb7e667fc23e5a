// `shadowgraph plan`: how a model is best trained on a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/plan_questions.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/draw/plans.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::cli {
namespace {

struct ClusterOptions {
  CaptureRequest capture{.mode = CaptureMode::kTrain, .dtype = c10::kBFloat16};
  std::string devices;       // "1024xh100"
  std::string interconnect;  // empty: what is usual around the device
  std::string tokens;        // of a step, "16M"
  int64_t samples = 0;       // of a step
  std::optional<MemoryLimit> memory;
  bool captured_state = false;
  bool bfloat16_gradients = false;
  ClusterRequest plan;
  std::vector<std::string> recompute, offload, attention, layout;
  std::string output;  // folder
  bool chakra = false;
  bool json = false;
  WhatOptions what;
};

// "1024xh100": how many, and which; "8": of the usual device.
std::pair<int64_t, std::string> devices_of(const std::string& text) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const std::string rest(end, text.data() + text.size());
  if (error != std::errc() || count < 1 || (!rest.empty() && (rest.size() < 2 || rest.front() != 'x'))) {
    throw CLI::ValidationError("--devices", "'" + text + "' is not a number of devices such as 1024xh100");
  }
  return {count, rest.empty() ? "" : rest.substr(1)};
}

// "16M", of 1,048,576 each, "512k", of 1,024, or a number.
int64_t tokens_of(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty() ? 1 : unit == "k" || unit == "K" ? 1024 : unit == "M" ? 1024.0 * 1024 : 0;
  if (error != std::errc() || factor == 0 || number <= 0) {
    throw CLI::ValidationError("--tokens-per-step", "'" + text + "' is not a number of tokens such as 16M or 512k");
  }
  return std::llround(number * factor);
}

int64_t batch_of(const ClusterOptions& options) {
  if (options.samples > 0 && !options.tokens.empty()) {
    throw CLI::ValidationError("--samples-per-step", "says the same as --tokens-per-step: give one of them");
  }
  if (options.samples > 0) return options.samples;
  if (options.tokens.empty()) throw CLI::RequiredError("--tokens-per-step or --samples-per-step");
  if (options.capture.seq == 0) throw CLI::ValidationError("--tokens-per-step", "is of sequences: give --seq");
  const int64_t tokens = tokens_of(options.tokens);
  if (tokens % options.capture.seq != 0) {
    throw CLI::ValidationError("--tokens-per-step", fmt::format("{} tokens are no whole number of sequences of {}",
                                                                tokens, options.capture.seq));
  }
  return tokens / options.capture.seq;
}

// A saved graph has one size of micro-batch, which is asked for if the graph does not say it.
void take_batch_of_graph(const CaptureRequest& step, ClusterRequest& request) {
  if (kind_of_source(step.source) != SourceKind::kGraph) return;
  const std::optional<int64_t> batch = read_saved_graph(step.source).metadata.batch;
  if (request.micro_batch.empty() && batch) request.micro_batch = {*batch};
  if (request.micro_batch.size() != 1 || (batch && request.micro_batch.front() != *batch)) {
    throw Error(fmt::format("{} is a recorded step of one micro-batch{}: say of how many samples with --micro-batch",
                            step.source, batch ? fmt::format(", of {} samples", *batch) : ""));
  }
}

Graph capture_step(CaptureRequest request, const StepSize& size) {
  request.batch = size.micro_batch;
  request.layers = size.layers;
  if (size.attention != AttentionKernel::kDevices) request.attention = size.attention;
  return load(request).graph;
}

StepSource source_of(const CaptureRequest& step) {
  const SourceKind kind = kind_of_source(step.source);
  const SourceLayers layers = layers_of_source(step.source);
  StepSource source{.capture = [step](const StepSize& size) { return capture_step(step, size); },
                    .layers = layers.count,
                    .first_layers = layers.first,
                    .name = name_of_source(step.source),
                    .any_micro_batch = kind != SourceKind::kGraph};
  const bool sized = kind == SourceKind::kModel || (kind == SourceKind::kPython && has_size(step, "seq"));
  if (sized && step.seq > 0) {
    source.with_sequence = [step](int64_t tokens) {
      CaptureRequest changed = step;
      changed.seq = tokens;
      return source_of(changed);
    };
  }
  return source;
}

// Writes the plan in the words of engines. Gives what a reader should know: engines without a file, and what differs.
std::string write_engine_files(const PlanAnswer& answer, const StepSource& source,
                               const std::filesystem::path& folder) {
  const TrainingPlan& plan = answer.best().plan;
  const Graph step = source.capture({.micro_batch = plan.micro_batch});
  std::string text = "\nengines:\n";
  for (const EngineFile& file : engine_files(plan, step,
                                             {answer.request.sequence, answer.request.batch, answer.request.float8,
                                              answer.request.state.gradient == 2})) {
    if (file.why_not.empty()) {
      write_file((folder / file.name).string(), file.text);
      text += fmt::format("  {:<16} {}\n", file.name, file.engine);
    } else {
      text += fmt::format("  {:<16} not written: {}\n", file.name, file.why_not);
    }
    for (const std::string& differs : file.differs) text += fmt::format("  {:<16}   {}\n", "", differs);
  }
  return text;
}

void write_files(const PlanAnswer& answer, const StepSource& source, const ClusterOptions& options) {
  if (options.output.empty()) return;
  const std::filesystem::path folder = options.output;
  std::filesystem::create_directories(folder);
  const auto file = [&](const char* name, const std::string& text) { write_file((folder / name).string(), text); };
  const std::string engines = write_engine_files(answer, source, folder);
  fmt::print(stderr, "{}", engines);
  file("plan.txt", to_text(answer) + engines);
  file("report.html", plan_html(answer));
  file("plan.json", json_text(to_json(answer)));
  if (!answer.best().layouts.empty()) file("layout.json", json_text(nlohmann::json(answer.best().layouts)));
  file("pipeline.txt", to_text(answer.best().run));
  file("schedule.csv", answer.best().run.schedule().to_csv());
  file("trace.json", to_chrome_trace(answer.best().run));
  if (options.chakra) {
    const TrainingPlan& plan = answer.best().plan;
    write_chakra(answer.best().run, (folder / "chakra").string(),
                 {.name = answer.name, .processes_per_stage = plan.tensor * plan.context});
  }
}

int plan(const ClusterOptions& options) {
  ClusterRequest request = options.plan;
  const auto [devices, name] = devices_of(options.devices);
  request.devices = devices;
  request.batch = batch_of(options);
  request.sequence = options.capture.seq;
  request.device = *DeviceSpec::find(name, c10::kCUDA);
  const auto around = Interconnect::around(request.device.name);
  if (options.interconnect.empty() && !around) {
    throw Error("no links are known around " + request.device.title + ": name some with --interconnect");
  }
  request.links = options.interconnect.empty() ? *around : Interconnect::find(options.interconnect);
  for (const std::string& what : options.recompute) request.recompute.push_back(parse_recompute(what));
  for (const std::string& who : options.layout) request.layouts.push_back(parse_tensor_layout(who));
  for (const std::string& kernel : options.attention) request.attention.push_back(parse_attention_kernel(kernel));
  for (const std::string& what : options.offload) allow_on_host(request, what);
  if (options.memory) request.memory = options.memory->bytes;
  CaptureRequest step = options.capture;
  take_batch_of_graph(step, request);
  step.steady_state = options.captured_state;
  if (options.captured_state) request.state = {};
  if (options.bfloat16_gradients) request.state.gradient = 2;
  const StepSource source = source_of(step);
  if (!options.what.what.empty()) {
    answer_questions(options.what, source, request, options.output, options.json);
    return 0;
  }
  const PlanAnswer answer = plan_training(source, request);
  write_files(answer, source, options);
  print_text(options.json ? json_text(to_json(answer)) : to_text(answer));
  return 0;
}

template <class Number>
void add_numbers(CLI::App& command, const std::string& name, std::vector<Number>& numbers, const std::string& about) {
  command.add_option(name, numbers, about)->delimiter(',')->check(whole_number_from(0));
}

void add_tried_options(CLI::App& command, ClusterOptions& options) {
  begin_group(command, "What is tried (default: all that makes sense)");
  add_numbers(command, "--tensor", options.plan.tensor, "Ranks of tensor parallel: 4,8");
  add_numbers(command, "--context", options.plan.context,
              "Ranks that share each sequence: 2,16 (default: those with 8,192 tokens of it, or more)");
  add_numbers(command, "--pipeline", options.plan.pipeline, "Ranks of a pipeline");
  add_numbers(command, "--stages-per-rank", options.plan.stages_per_rank, "Stages of a rank");
  add_numbers(command, "--experts", options.plan.experts, "Data ranks that share the experts of a layer: 8,64");
  command
      .add_option("--expert-capacity", options.plan.expert_capacity,
                  "Rows that a rank of experts has room for, over the mean (default: 1, routing is even)")
      ->capture_default_str();
  add_choice(command, "--overlap", options.plan.overlap,
             {{"none", CollectiveOverlap::kNone},
              {"backward", CollectiveOverlap::kBackward},
              {"pieces", CollectiveOverlap::kPieces}},
             "Tensor parallel's collectives: none are hidden, as by DTensor; backward's, as by Megatron-LM; pieces of "
             "products, too, as by --tp-comm-overlap and asynchronous tensor parallel");
  command
      .add_option(
          "--layout", options.layout,
          "Who lays tensors out over ranks of tensor parallel: megatron (its rules, the default), or the solver of "
          "shard: solved (quickest), lean (keeps less); no engine has words for that, but layout.json")
      ->delimiter(',')
      ->check(CLI::IsMember({"megatron", "solved", "lean"}));
  add_numbers(command, "--micro-batch", options.plan.micro_batch, "Samples of a micro-batch");
  add_numbers(command, "--zero", options.plan.zero, "1: optimizer state, 2: and gradients, 3: and parameters are cut");
  add_list(command, "--schedule", options.plan.schedules,
           fmt::format("{}", fmt::join(PipelineSchedule::names(), ", ")));
  command
      .add_option("--recompute", options.recompute,
                  "What backward may compute again of a layer: nothing, whole, selective (all but products, attention "
                  "and sums over ranks), curve (what is worth it; no engine but train.py has words for it)")
      ->delimiter(',')
      ->check(CLI::IsMember({"nothing", "selective", "whole", "curve"}));
  command
      .add_option(
          "--offload", options.offload,
          "What may be on the host: activations (what layers keep for backward), optimizer (its state and step)")
      ->delimiter(',')
      ->check(CLI::IsMember({"activations", "optimizer"}));
  command
      .add_option("--attention", options.attention,
                  "Kernels of scaled_dot_product_attention (default: device, what PyTorch takes there)")
      ->delimiter(',')
      ->check(CLI::IsMember({"device", "flash", "efficient", "cudnn", "math"}));
}

void add_options(CLI::App& command, ClusterOptions& options) {
  add_source(command, options.capture);
  begin_group(command, "The cluster");
  command.add_option("--devices", options.devices, "How many of which device: 1024xh100")->required();
  CLI::Option* links = add_interconnect_option(command, options.interconnect);
  command
      .add_option("--topology", options.interconnect,
                  "The same as a file of levels: NVLink, rail, spine, sites (docs/interconnect.schema.json)")
      ->check(CLI::ExistingFile)
      ->excludes(links);
  add_memory(command, options.memory, "Memory of a device, 80GB (default: its own)");
  begin_group(command, "The step");
  command.add_option("--tokens-per-step", options.tokens, "On all devices: 16M (of 1,048,576), 512k");
  add_number(command, "--samples-per-step", options.samples, 1, "The same in samples, or sequences");
  add_number(command, "--seq", options.capture.seq, 1, "Sequence length of a language model");
  add_list(command, "--input", options.capture.inputs,
           "An input of a TorchScript file or in Python, [NAME=]'f32[batch,3,64,64]'; repeat");
  add_dtype_option(command, options.capture);
  add_answers_to_reads(command, options.capture);
  add_loop_options(command, options.capture);
  CLI::Option* captured =
      command.add_flag("--captured-state", options.captured_state,
                       "State as --optimizer and --dtype leave it (default: float32 gradients, weights and moments)");
  add_choice(command, "--gradients", options.bfloat16_gradients, {{"f32", false}, {"bf16", true}},
             "How gradients are kept and summed over replicas: f32, bf16");
  captured->excludes(command.get_option("--gradients"));
  command.add_flag("--float8", options.plan.float8,
                   "Products of layers in float8, as torchao and TransformerEngine do");
  add_optimizer_option(command, options.capture, "With --captured-state: sgd, adam, adamw; in Python adafactor");
  add_tried_options(command, options);
  add_what_options(command, options.what);
  begin_group(command, kOutput);
  command.add_option("-o,--output", options.output,
                     "Folder for report.html, plan.json, plan.txt, pipeline.txt, schedule.csv, trace.json, and the "
                     "plan in the words of "
                     "engines: " +
                         fmt::format("{}", fmt::join(engine_file_names(), ", ")));
  command.add_flag("--chakra", options.chakra, "With -o: Chakra traces of one replica, without sums over replicas");
  command.add_flag("--json", options.json, "As JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph plan llama3_405b --devices 8192xh100 --tokens-per-step 16M --seq 8192 -o plan\n"
      "  shadowgraph plan llama3_405b --devices 1024xh100 --tokens-per-step 16M --seq 8192 --what devices,network\n"
      "  shadowgraph plan gpt2_xl --devices 16xa100 --samples-per-step 512 --seq 1024 --micro-batch 4");
}

}  // namespace

Work declare_plan(CLI::App& command) { return work_of<ClusterOptions>(command, add_options, plan); }

}  // namespace shadowgraph::cli
