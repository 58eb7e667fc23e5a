// `shadowgraph pipeline`: simulates a step that is split into pipeline stages: time and memory of every rank.
#include "shadowgraph/plan/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/profile/communication.h"
#include "support/files.h"

namespace shadowgraph::cli {
namespace {

struct PipelineRequest {
  CaptureRequest capture{.mode = CaptureMode::kTrain, .steady_state = true};
  std::string spec;          // device; empty: by the graph's device
  std::string interconnect;  // empty: typical for the device
  std::string allocator;
  PipelineSize size{.ranks = 4, .stages_per_rank = 2, .microbatches = 8};
  std::string schedule = "1f1b";      // a name, or a file
  std::vector<std::string> cuts;      // modules
  std::optional<MemoryLimit> memory;  // of a device
  PipelineRunOptions run;
  std::string output;  // folder
  std::string chakra;  // folder; empty: no traces of that kind
  bool json = false;
};

PipelineSchedule schedule_of(const CLI::App& command, const PipelineRequest& request) {
  if (is_file(request.schedule)) {
    takes_none_of(command, "--schedule FILE", {"--ranks", "--stages-per-rank", "--microbatches"});
    return PipelineSchedule::read_csv_file(request.schedule);
  }
  PipelineSize size = request.size;
  size.stages_per_rank = PipelineSchedule::stages_per_rank(request.schedule, size.stages_per_rank);
  if (command.count("--stages-per-rank") > 0) size.stages_per_rank = request.size.stages_per_rank;
  return PipelineSchedule::named(request.schedule, size);
}

PipelineStages stages_of(const Graph& step, const PipelineRequest& request, int32_t count,
                         const StageOptions& options) {
  if (request.cuts.empty()) return PipelineStages::balanced(step, count, options);
  if (static_cast<int32_t>(request.cuts.size()) + 1 != count) {
    throw Error(fmt::format("{} stages need {} --cut options, one per stage after the first, but {} were given", count,
                            count - 1, request.cuts.size()));
  }
  return PipelineStages::at_modules(step, request.cuts, options);
}

// Returns a message listing the ranks that need more than `memory`; "" if there are none.
std::string memory_problem(const PipelineRun& run, const std::optional<MemoryLimit>& memory) {
  if (!memory) return "";
  std::string ranks;
  for (int32_t r = 0; r < run.ranks(); ++r) {
    const int64_t held = std::max(run.rank(r).peak, run.rank(r).reserved_peak);
    if (held > memory->bytes)
      ranks += fmt::format("{}rank {} needs {}", ranks.empty() ? "" : ", ", r, human_bytes(held));
  }
  return ranks.empty() ? "" : fmt::format("does not fit into {}: {}", human_bytes(memory->bytes), ranks);
}

void write_files(const PipelineRun& run, const PipelineRequest& request, const std::string& name) {
  if (request.output.empty()) return;
  const std::filesystem::path folder = request.output;
  make_folder(folder);
  const auto file = [&](const char* name, const std::string& text) { write_file((folder / name).string(), text); };
  file("pipeline.json", json_text(to_json(run)));
  file("pipeline.txt", printable(to_text(run)));
  file("schedule.csv", run.schedule().to_csv());
  file("trace.json", to_chrome_trace(run));
  const std::optional<int64_t> memory = request.memory ? std::optional(request.memory->bytes) : std::nullopt;
  file("pipeline.svg", pipeline_svg(run, {name, memory}));
  file("pipeline.html", pipeline_html(run, {name, memory}));
}

void write_traces(const PipelineRun& run, const PipelineRequest& request, const std::string& name) {
  if (request.chakra.empty()) return;
  const Progress progress("writing " + request.chakra);
  const ChakraFiles files =
      write_chakra(run, request.chakra, {.name = name, .processes_per_stage = request.run.rank_stride});
  print_log("{}: {} files, {} nodes, {}\n", request.chakra, files.files, files.nodes, human_bytes(files.bytes));
}

int pipeline(const CLI::App& command, const PipelineRequest& request) {
  if (!request.capture.trains()) throw Error("pipeline requires a training step; use --mode train");
  const PipelineSchedule schedule = schedule_of(command, request);
  CaptureRequest step = request.capture;
  step.foreach = false;
  const LoadedGraph loaded = load(step);
  const Progress progress("running " + std::to_string(schedule.ranks()) + " ranks of " + loaded.name);
  const c10::Device device = loaded.graph.metadata.device.value_or(c10::Device(c10::kCPU));
  const Machine machine = Machine::find(request.spec, request.interconnect, request.memory, device.type());
  const StageOptions of_stages{.spec = &machine.specs(), .interconnect = machine.links ? &*machine.links : nullptr};
  const PipelineStages stages = stages_of(loaded.graph, request, schedule.stages(), of_stages);
  PipelineRunOptions options = request.run;
  options.interconnect = of_stages.interconnect;
  options.allocator = AllocatorSettings::parse(request.allocator);
  const PipelineRun run = PipelineRun::of(stages, schedule, options);
  write_files(run, request, loaded.name);
  write_traces(run, request, loaded.name);
  print_text(request.json ? json_text(to_json(run)) : to_text(run));
  const std::string problem = memory_problem(run, request.memory);
  if (!problem.empty()) throw Error(loaded.name + " " + problem);
  return 0;
}

void add_options(CLI::App& command, PipelineRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  add_spec_option(command, request.spec);
  add_interconnect_option(command, request.interconnect);
  add_allocator_option(command, request.allocator);
  add_memory(command, request.memory, "Device memory, l4 or 24GiB: fails if a rank needs more");
  begin_group(command, "Pipeline");
  std::vector<std::string> open = PipelineSchedule::names();
  std::erase_if(open, [](const std::string& name) { return PipelineSchedule::stages_per_rank(name, 0) > 0; });
  command
      .add_option("--schedule", request.schedule,
                  fmt::format("{}, or a PyTorch schedule CSV", fmt::join(PipelineSchedule::names(), ", ")))
      ->capture_default_str();
  add_number(command, "--ranks", request.size.ranks, 1, "Ranks of the pipeline");
  add_number(command, "--microbatches", request.size.microbatches, 1,
             "Micro-batches per step; --batch is the size of each");
  add_number(command, "--stages-per-rank", request.size.stages_per_rank, 1,
             fmt::format("Stages per rank, for {}", fmt::join(open, ", ")));
  add_list(command, "--cut", request.cuts,
           "Module at which the next stage begins; repeatable (default: balanced stages)");
  cli::add_options(command, request.run, PipelineRunOptions::table());
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output,
                     "Write pipeline.html, .svg, .json, .txt, schedule.csv and trace.json to this folder");
  command.add_option("--chakra", request.chakra, "Folder for MLCommons Chakra execution traces, one file per process");
  command.add_flag("--json", request.json, "Print JSON");
  command.footer(
      "Examples:\n"
      "  shadowgraph pipeline llama3_8b --dtype bf16 --batch 1 --ranks 4 --microbatches 16 -o pipeline\n"
      "  shadowgraph pipeline gpt2 --schedule zbv --ranks 4 --microbatches 8 --json");
}

}  // namespace

Work declare_pipeline(CLI::App& command) { return work_of<PipelineRequest>(command, add_options, pipeline); }

}  // namespace shadowgraph::cli
