// `shadowgraph plan`: finds the fastest parallelism plan for a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/communication.h"
#include "support/files.h"

namespace shadowgraph::cli {
namespace {

// Sweeps that compare several plans.
struct SweepOptions {
  std::vector<std::string> what, values;
  PlanSweepOptions question;
};

void add_sweep_options(CLI::App& command, SweepOptions& options) {
  begin_group(command, "Sweeps (print a table instead of one plan)");
  command
      .add_option("--sweep", options.what,
                  fmt::format("Quantities to vary: {}; comma-separated", fmt::join(enum_words<PlanSweepKind>(), ", ")))
      ->delimiter(',')
      ->check(one_of(enum_words<PlanSweepKind>()));
  command
      .add_option("--values", options.values,
                  "Values to try: 512,1024; network: bandwidth factors (default: around the request's own)")
      ->delimiter(',');
  cli::add_options(command, options.question, PlanSweepOptions::table());
}

// Prints a table per sweep, and writes sweep.txt and sweep.json to `folder` unless it is empty.
void run_sweeps(const SweepOptions& options, const StepSource& source, const ClusterRequest& request,
                const std::string& folder, bool as_json) {
  std::vector<PlanSweepOptions> sweeps;  // all are checked before the first runs
  for (const std::string& what : options.what) {
    PlanSweepOptions& question = sweeps.emplace_back(options.question);
    question.kind = *find_named<PlanSweepKind>(what);
    question.values = sweep_values(question.kind, options.values);
  }
  if (sweeps.size() > 1 && !options.values.empty()) {
    throw CLI::ValidationError("--values", "applies to one quantity; give a single --sweep");
  }
  PlanSweep sweep(source, request);
  nlohmann::json all = nlohmann::json::object();
  std::string text;
  for (const PlanSweepOptions& question : sweeps) {
    const Progress progress(fmt::format("planning {} for several values of {}", source.name, to_string(question.kind)));
    const PlanTable table = sweep.run(question);
    all[to_string(table.kind)] = to_json(table);
    text += (text.empty() ? "" : "\n") + to_text(table);
  }
  if (!folder.empty()) {
    make_folder(folder);
    write_file((std::filesystem::path(folder) / "sweep.txt").string(), printable(text));
    write_file((std::filesystem::path(folder) / "sweep.json").string(), json_text(all));
  }
  print_text(as_json ? json_text(all) : text);
}

struct ClusterOptions {
  CaptureRequest capture{.mode = CaptureMode::kTrain, .dtype = c10::kBFloat16};
  std::string devices;       // "1024xh100"
  std::string interconnect;  // empty: typical for the device
  int64_t tokens = 0;        // of a step
  int64_t samples = 0;       // of a step
  ClusterRequest plan;
  std::string output;  // folder
  bool chakra = false, json = false;
  SweepOptions what;
};

// "4194304 (4Mi)" for 4M, if that is a multiple of `of`; otherwise empty.
std::string binary_multiple(int64_t tokens, int64_t of) {
  constexpr std::array kUnits{"", "Ki", "Mi", "Gi", "Ti"};
  size_t power = 0;
  for (; tokens % 1000 == 0 && power + 1 < kUnits.size(); ++power) tokens /= 1000;
  const int64_t binary = tokens << (10 * power);
  return power > 0 && binary % of == 0 ? fmt::format("{} ({}{})", binary, tokens, kUnits[power]) : "";
}

// Lists nearby numbers of tokens that are multiples of the sequence length.
std::string nearest_multiples(int64_t tokens, int64_t seq) {
  const int64_t below = tokens / seq * seq;
  std::string text = below > 0 ? fmt::format("{} or {}", below, below + seq) : std::to_string(seq);
  if (const std::string binary = binary_multiple(tokens, seq); !binary.empty()) text += ", or " + binary;
  return text;
}

int64_t batch_of(const ClusterOptions& options) {
  if (options.samples > 0 && options.tokens > 0) {
    throw CLI::ValidationError("--samples-per-step", "cannot be used with --tokens-per-step; give one of them");
  }
  if (options.samples > 0) return options.samples;
  if (options.tokens == 0) throw CLI::RequiredError("--tokens-per-step or --samples-per-step");
  if (options.capture.seq == 0) throw CLI::ValidationError("--tokens-per-step", "requires --seq, the sequence length");
  const int64_t tokens = options.tokens;
  if (tokens % options.capture.seq != 0) {
    throw CLI::ValidationError("--tokens-per-step",
                               fmt::format("{} tokens is not a multiple of the sequence length {}; use {}", tokens,
                                           options.capture.seq, nearest_multiples(tokens, options.capture.seq)));
  }
  return tokens / options.capture.seq;
}

// A saved graph has a fixed micro-batch size: taken from its metadata, or else required from the user.
void take_batch_of_graph(const CaptureRequest& step, ClusterRequest& request) {
  if (kind_of_source(step.source) != SourceKind::kGraph) return;
  const std::optional<int64_t> batch = read_saved_graph(step.source).metadata.batch;
  if (request.micro_batch.empty() && batch) request.micro_batch = {*batch};
  if (request.micro_batch.size() != 1 || (batch && request.micro_batch.front() != *batch)) {
    throw Error(fmt::format("{} is a saved step with one micro-batch{}; give its number of samples with --micro-batch",
                            step.source, batch ? fmt::format(", of {} samples", *batch) : ""));
  }
}

Graph capture_step(CaptureRequest request, const StepSize& size) {
  request.batch = size.micro_batch;
  request.layers = size.layers;
  if (size.attention != AttentionKernel::kDevice) request.attention = size.attention;
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
  if (step.seq > 0 && (kind == SourceKind::kModel || (kind == SourceKind::kPython && has_size(step, "seq")))) {
    source.with_sequence = [step](int64_t tokens) {
      CaptureRequest changed = step;
      changed.seq = tokens;
      return source_of(changed);
    };
  }
  return source;
}

// Exports the plan for training frameworks. Returns a summary: files, frameworks without a file, and deviations.
std::string write_exports(const ClusterPlan& answer, const StepSource& source, const std::filesystem::path& folder) {
  const TrainingPlan& plan = answer.best().plan;
  const Graph step = source.capture({.micro_batch = plan.micro_batch});
  std::string text = "\nexported files:\n";
  for (const PlanExport& file : export_plan(plan, step,
                                            {answer.request.sequence, answer.request.batch, answer.request.float8,
                                             answer.request.state.gradient == 2})) {
    if (file.why_not.empty()) {
      write_file((folder / file.name).string(), file.text);
      text += fmt::format("  {:<16} {}\n", file.name, file.framework);
    } else {
      text += fmt::format("  {:<16} not written: {}\n", file.name, file.why_not);
    }
    for (const std::string& differs : file.differs) text += fmt::format("  {:<16}   {}\n", "", differs);
  }
  return text;
}

void write_files(const ClusterPlan& answer, const StepSource& source, const ClusterOptions& options) {
  if (options.output.empty()) return;
  const std::filesystem::path folder = options.output;
  make_folder(folder);
  const auto file = [&](const char* name, const std::string& text) { write_file((folder / name).string(), text); };
  const std::string exports = write_exports(answer, source, folder);
  print_log("{}", exports);
  file("plan.txt", printable(to_text(answer) + exports));
  file("report.html", plan_html(answer));
  file("plan.json", json_text(to_json(answer)));
  if (!answer.best().layouts.empty()) file("parameter_layouts.json", json_text(nlohmann::json(answer.best().layouts)));
  file("pipeline.txt", printable(to_text(answer.best().run)));
  file("schedule.csv", answer.best().run.schedule().to_csv());
  file("trace.json", to_chrome_trace(answer.best().run));
  if (options.chakra) {
    const TrainingPlan& plan = answer.best().plan;
    write_chakra(answer.best().run, (folder / "chakra").string(),
                 {.name = answer.name, .processes_per_stage = plan.tensor * plan.context});
  }
}

int plan(const ClusterOptions& options) {
  const ClusterRequest cluster = ClusterRequest::on(options.devices, options.interconnect);
  ClusterRequest request = options.plan;
  request.devices = cluster.devices;
  request.device = cluster.device;
  request.links = cluster.links;
  request.batch = batch_of(options);
  request.sequence = options.capture.seq;
  CaptureRequest step = options.capture;
  step.foreach = false;
  take_batch_of_graph(step, request);
  step.steady_state = !request.state.optimizer;
  std::optional<Progress> progress("planning " + step.source);
  const StepSource source = source_of(step);
  if (!options.what.what.empty()) {
    progress.reset();
    run_sweeps(options.what, source, request, options.output, options.json);
    return 0;
  }
  const ClusterPlan answer = plan_training(source, request);
  progress.reset();  // before output
  write_files(answer, source, options);
  print_text(options.json ? json_text(to_json(answer)) : to_text(answer));
  return 0;
}

void add_options(CLI::App& command, ClusterOptions& options) {
  add_source(command, options.capture);
  begin_group(command, "Cluster");
  command.add_option("--devices", options.devices, "Number and type of devices: 1024xh100")->required();
  CLI::Option* links = add_interconnect_option(command, options.interconnect);
  command
      .add_option("--topology", options.interconnect,
                  "Network file with levels such as NVLink, rail, spine, sites (docs/interconnect.schema.json)")
      ->check(CLI::ExistingFile)
      ->excludes(links);
  begin_group(command, "Step");
  add_tokens(command, "--tokens-per-step", options.tokens,
             "Global batch in tokens: 16Mi (x 1,048,576), 16M (x 1,000,000), 512Ki");
  add_number(command, "--samples-per-step", options.samples, 1, "Global batch in samples or sequences");
  add_tokens(command, "--seq", options.capture.seq, "Sequence length of a language model: 8192, 8Ki");
  add_capture_options_named(command, options.capture,
                            {"input", "dtype", "host_reads", "data_sizes", "autocast", "clip_grad_norm", "grad_scaler",
                             "ema", "zero_grads", "debug", "optimizer"});
  cli::add_options(command, options.plan, ClusterRequest::table());
  add_sweep_options(command, options.what);
  begin_group(command, kOutput);
  command.add_option("-o,--output", options.output,
                     "Write report.html, plan.json, plan.txt, pipeline.txt, schedule.csv, trace.json and the plan "
                     "exported for training frameworks: " +
                         fmt::format("{}", fmt::join(plan_export_names(), ", ")));
  command.add_flag("--chakra", options.chakra,
                   "With -o: also write Chakra traces of one replica, without reductions over replicas");
  command.add_flag("--json", options.json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph plan llama3_405b --devices 8192xh100 --tokens-per-step 16Mi --seq 8192 -o plan\n"
      "  shadowgraph plan llama3_405b --devices 1024xh100 --tokens-per-step 16Mi --seq 8192 --sweep devices,network\n"
      "  shadowgraph plan gpt2_xl --devices 16xa100 --samples-per-step 512 --seq 1024 --micro-batch 4");
}

}  // namespace

Work declare_plan(CLI::App& command) { return work_of<ClusterOptions>(command, add_options, plan); }

}  // namespace shadowgraph::cli
