// `shadowgraph profile`: what a program holds, when the peak is, what it costs; and what it would hold otherwise.
#include "shadowgraph/profile.h"

#include <nlohmann/json.hpp>

#include <memory>

#include "cli/exports.h"
#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "cli/what_if.h"

namespace shadowgraph::cli {
namespace {

struct ProfileRequest {
  CaptureRequest capture;
  EstimateRequest estimate;
  std::vector<std::string> what_if;  // "zero=1"; empty: the program as it is
  bool run = false;                  // also the first three steps of a training run
  std::string folder;                // empty: no files
  std::vector<std::string> exports;  // files beside the usual three
  bool json = false;                 // one JSON object on stdout instead of the tables
  std::string group = "module";      // module | composite | operator
  int depth = 0;
  int rows = 40;
};

void add_options(CLI::App& command, ProfileRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  add_estimate_options(command, request.estimate);
  add_bytes(command, "--memory", request.estimate.memory, "Memory of the device: says so if the step does not fit",
            "80GiB");
  command.add_flag("--measure", request.estimate.measure,
                   "Run each distinct call once on this CPU, for scratch and seconds; kept for next time");
  begin_group(command, kOutput);
  command
      .add_option("--what-if", request.what_if,
                  "What a step would hold with other dtype, optimizer, accumulate, checkpoint, zero, ranks")
      ->delimiter(',')
      ->type_name("NAME=VALUE,...");
  command.add_option("-o,--output", request.folder, "Folder for graph.sg, profile.json and report.html");
  command
      .add_option("--export", request.exports,
                  "More files for -o: svg, dot, nodes-csv, storages-csv, trace, snapshot, model-explorer")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->check(one_of(export_names()));
  command.add_flag("--json", request.json, "One JSON object instead of tables");
  command.add_flag("--run", request.run, "Also what the first three steps of a training run hold");
  add_choice(command, "--group", request.group, {"module", "composite", "operator"},
             "Rows of the table: module, composite, operator");
  add_number(command, "--depth", request.depth, 0, "Module levels in the table (0: what fits)");
  add_number(command, "--rows", request.rows, 0, "Most rows of the table (0: all)");
  command.footer(
      "Examples:\n"
      "  shadowgraph profile resnet50 --mode train --batch 32 -o out/resnet50 --export nodes-csv,trace\n"
      "  shadowgraph profile gpt2 --batch 8 --what-if zero=3,ranks=8,dtype=bf16,optimizer=adamw");
}

SummaryOptions summary_options(const ProfileRequest& request) {
  SummaryOptions options;
  options.grouping = request.group == "composite"  ? SummaryGrouping::kComposite
                     : request.group == "operator" ? SummaryGrouping::kOperator
                                                   : SummaryGrouping::kModule;
  options.depth = request.depth;
  options.max_rows = static_cast<size_t>(request.rows);
  return options;
}

int answer_what_if(const CLI::App& command, ProfileRequest& request) {
  takes_only(command, "--what-if", {"SOURCE", kModel, kStep, "--device", "--json"});
  if (command.count("--mode") > 0 && !request.capture.trains()) {
    throw CLI::ValidationError("--mode", "--what-if is of a training step: leave --mode out");
  }
  request.capture.mode = "train";
  print_what_if(request.capture, request.what_if, request.json);
  return 0;
}

int profile(const CLI::App& command, ProfileRequest& request) {
  if (!request.what_if.empty()) return answer_what_if(command, request);
  if (!request.exports.empty() && request.folder.empty()) {
    throw CLI::ValidationError("--export", "its files go into the folder of -o: name one");
  }
  if (!request.folder.empty()) make_folder(request.folder);
  const auto profiled = load_and_profile(request.capture, request.estimate);
  if (request.run) {
    const LoadedGraph steps = load_run(request.capture, /*steps=*/3);
    profiled->costs.run = RunMemory::of(steps.graph, profiled->estimates->options().memory);
  }
  nlohmann::json json;  // worked out for whom it is
  if (request.json || !request.folder.empty()) json = to_json(profiled->costs);
  if (request.json) {
    print_text(json_text(json));
  } else {
    print_text(to_text(profiled->costs.summary(summary_options(request))) + "\n" + to_text(profiled->costs));
  }
  if (!request.folder.empty()) write_folder(request.folder, *profiled, json, request.exports);
  return 0;
}

}  // namespace

Work declare_profile(CLI::App& command) {
  const auto request = std::make_shared<ProfileRequest>();
  add_options(command, *request);
  return [request, &command] { return profile(command, *request); };
}

}  // namespace shadowgraph::cli
