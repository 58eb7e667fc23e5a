// `shadowgraph profile`: memory, time and FLOPs of a program, and predictions for a changed one.
#include "shadowgraph/profile/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/tool.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/profile/what_if.h"
#include "support/files.h"

namespace shadowgraph::cli {
namespace {

struct ProfileRequest {
  CaptureRequest capture;
  EstimateRequest estimate;
  std::vector<std::string> what_if;  // "zero=1"; empty: no prediction
  bool run = false;                  // also profile the first three steps of a training run
  std::string folder;                // empty: no files
  std::vector<std::string> exports;  // additional files in `folder`
  bool json = false;                 // one JSON object on stdout instead of the tables
  std::string ranks;                 // "all", "0,3", of capture.world processes; empty: rank 0 only
  std::string target;                // of the loss in a pipeline's last stage, "i64[32,512]"
  SummaryGrouping group = SummaryGrouping::kModule;
  int depth = 0, rows = 40;
};

struct Export {
  const char* name;
  const char* file;
  std::string (*text)(const Profiled& profiled);
};

std::string dot_of(const Profiled& profiled) { return write_dot(ViewModel::of(profiled.loaded.graph, {})); }

constexpr Export kExports[] = {
    {"svg", "graph.svg", [](const Profiled& p) { return render_svg(dot_of(p)); }},
    {"dot", "graph.dot", dot_of},
    {"nodes-csv", "nodes.csv", [](const Profiled& p) { return nodes_csv(p.costs); }},
    {"storages-csv", "storages.csv", [](const Profiled& p) { return storages_csv(p.costs); }},
    {"trace", "trace.json", [](const Profiled& p) { return chrome_trace(p.costs); }},
    {"model-explorer", "model_explorer.json", [](const Profiled& p) { return json_text(model_explorer(p.costs)); }},
    {"snapshot", "snapshot.pickle",
     [](const Profiled& p) { return memory_snapshot(p.costs, p.estimates->options().memory); }},
};

constexpr const char* kProcesses = "torch.distributed (Python models only)";

std::string ranks_problem(const std::string& text) {
  const bool numbers = !text.empty() && text.find_first_not_of("0123456789,") == text.npos && text.front() != ',' &&
                       text.back() != ',' && text.find(",,") == text.npos;
  return text == "all" || numbers ? "" : "'" + text + "' is not a list of ranks; expected all, or numbers such as 0,3";
}

void add_options(CLI::App& command, ProfileRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  add_estimate_options(command, request.estimate);
  command.add_flag("--measure", request.estimate.measure,
                   "Measure scratch memory and time of each distinct call on this CPU; results are cached");
  std::vector<std::string> exports;
  for (const Export& each : kExports) exports.emplace_back(each.name);
  begin_group(command, kOutput);
  command
      .add_option("--what-if", request.what_if,
                  "Predict a changed step: dtype, optimizer, accumulate, checkpoint, zero, ranks")
      ->delimiter(',')
      ->type_name("NAME=VALUE,...");
  command.add_option("-o,--output", request.folder, "Write graph.sg, profile.json and report.html to this folder");
  command
      .add_option("--export", request.exports,
                  "More files for -o: svg, dot, nodes-csv, storages-csv, trace, snapshot, model-explorer")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->check(one_of(exports));
  command.add_flag("--json", request.json, "Print one JSON object instead of tables");
  command.add_flag("--run", request.run, "Also profile the first three steps of a training run");
  add_choice(command, "--group", request.group, "Group table rows by module, composite or operator");
  add_number(command, "--depth", request.depth, 0, "Module levels in the table (0: as many as fit)");
  add_number(command, "--rows", request.rows, 0, "Maximum rows of the table (0: all)");
  begin_group(command, kProcesses);
  add_number(command, "--world", request.capture.world, 1, "Capture rank 0 of this many processes");
  command
      .add_option("--ranks", request.ranks,
                  "Profile these ranks by role, including time spent waiting for each other: all, or 0,3")
      ->check(ranks_problem);
  command.add_option("--target", request.target, "Target of the loss in a pipeline's last stage: i64[32,512]");
  command.footer(
      "Examples:\n"
      "  shadowgraph profile resnet50 --mode train --batch 32 -o out/resnet50 --export nodes-csv,trace\n"
      "  shadowgraph profile gpt2 --batch 8 --what-if zero=3,ranks=8,dtype=bf16,optimizer=adamw");
}

struct WhatIfChange {
  const char* name;
  CLI::Validator takes;
  void (*apply)(WhatIf& change, const std::string& value);
};

const std::vector<WhatIfChange>& what_if_changes() {
  static const std::vector<WhatIfChange> known = {
      {"dtype", one_of({"bf16", "f16"}),
       [](WhatIf& change, const auto& value) { change.dtype = value == "bf16" ? c10::kBFloat16 : c10::kHalf; }},
      {"optimizer", one_of({"none", "sgd", "sgd_momentum", "adam", "adamw"}),
       [](WhatIf& change, const auto& value) { change.optimizer = value; }},
      {"accumulate", whole_number_from(1),
       [](WhatIf& change, const auto& value) { change.accumulate = std::stoll(value); }},
      {"checkpoint", CLI::Validator([](std::string&) { return std::string(); }, ""),
       [](WhatIf& change, const auto& value) { change.checkpoint = value; }},
      {"zero", one_of({"0", "1", "2", "3"}),
       [](WhatIf& change, const auto& value) { change.zero_stage = std::stoi(value); }},
      {"ranks", whole_number_from(2), [](WhatIf& change, const auto& value) { change.ranks = std::stoll(value); }},
  };
  return known;
}

void apply(const std::string& text, WhatIf& change) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  std::vector<std::string> names;
  for (const WhatIfChange& known : what_if_changes()) {
    names.emplace_back(known.name);
    if (name != known.name) continue;
    const std::string value = equals == text.npos ? "" : text.substr(equals + 1);
    const std::string problem =
        value.empty() ? "the value is missing; give NAME=VALUE, for example zero=1" : known.takes(value);
    if (!problem.empty()) throw CLI::ValidationError("--what-if " + name, problem);
    known.apply(change, value);
    return;
  }
  throw CLI::ValidationError("--what-if", one_of(names)(name));
}

void write_folder(const std::string& folder, const Profiled& profiled, const nlohmann::json& profile,
                  const std::vector<std::string>& exports) {
  write_graph_file(folder + "/graph.sg", profiled.loaded.graph);
  write_file(folder + "/profile.json", json_text(profile));
  write_file(folder + "/report.html", to_html(profiled.costs, {.title = profiled.title}));
  std::vector<std::string> written{"graph.sg", "profile.json", "report.html"};
  for (const Export& each : kExports) {
    if (std::ranges::find(exports, each.name) == exports.end()) continue;
    // The simulated allocator stops when it runs out of memory, so a snapshot would be incomplete.
    if (each.name == std::string("snapshot") && !profiled.costs.out_of_memory.empty()) {
      print_log("shadowgraph: no snapshot written: the step does not fit in memory\n");
      continue;
    }
    write_file(folder + "/" + each.file, each.text(profiled));
    written.emplace_back(each.file);
  }
  print_log("wrote {} to {}\n", fmt::join(written, ", "), folder);
}

int answer_what_if(const CLI::App& command, const ProfileRequest& request) {
  takes_only(command, "--what-if", {"SOURCE", kModel, kStep, "--device", "--json"});
  if (command.count("--mode") > 0 && !request.capture.trains()) {
    throw CLI::ValidationError("--mode", "--what-if predicts a training step; remove --mode, or use --mode train");
  }
  CaptureRequest step = request.capture;
  step.mode = CaptureMode::kTrain;
  WhatIf change;
  for (const std::string& text : request.what_if) apply(text, change);
  const LoadedGraph loaded = load(step);
  const WhatIfResult answer = what_if(loaded.graph, change);
  print_text(request.json ? json_text(to_json(answer)) : to_text(answer));
  return 0;
}

// Profiles several ranks of a distributed program.
int profile_ranks(const CLI::App& command, const ProfileRequest& request) {
  if (request.capture.world == 0) throw CLI::ValidationError("--ranks", "requires --world, the number of processes");
  for (const char* option : {"--checkpoint", "--what-if", "--run", "--measure", "--mesh"}) {
    if (command.count(option) > 0) throw CLI::ValidationError(option, "applies to a single process; remove --ranks");
  }
  if (kind_of_source(request.capture.source) != SourceKind::kPython) {
    throw Error("--ranks requires a Python model (some.module:factory or hf:CONFIG.json), not " +
                request.capture.source);
  }
  const EstimateRequest& estimate = request.estimate;
  nlohmann::json memory;
  if (estimate.memory) memory = estimate.memory->bytes;
  if (estimate.memory && !estimate.memory->device.empty()) memory = estimate.memory->device;
  nlohmann::json ranks = python_request(request.capture);
  ranks.update({{"spec", estimate.spec},
                {"allocator", estimate.allocator},
                {"memory", memory},
                {"interconnect", estimate.interconnect},
                {"ranks", request.ranks},
                {"target", request.target},
                {"json", request.json},
                {"folder", request.folder},
                {"exports", request.exports}});
  print_text(with_progress("profiling the ranks of " + request.capture.source, [&] {
    return needed_python(request.capture.source + " is a Python model").ask("ranks", ranks);
  }));
  return 0;
}

int profile(const CLI::App& command, const ProfileRequest& request) {
  if (!request.what_if.empty()) return answer_what_if(command, request);
  if (!request.exports.empty() && request.folder.empty()) {
    throw CLI::ValidationError("--export", "requires an output folder; add -o FOLDER");
  }
  if (request.json) takes_none_of(command, "--json", {"--group", "--depth", "--rows"});
  if (!request.folder.empty()) make_folder(request.folder);
  if (!request.ranks.empty()) return profile_ranks(command, request);
  const auto profiled = load_and_profile(request.capture, request.estimate);
  if (request.run) {
    const LoadedGraph steps = load_run(request.capture, /*steps=*/3);
    profiled->costs.run = RunMemory::of(steps.graph, profiled->estimates->options().memory);
  }
  nlohmann::json json;  // computed only if it is written
  if (request.json || !request.folder.empty()) json = to_json(profiled->costs);
  if (request.json) {
    print_text(json_text(json));
  } else {
    SummaryOptions options;
    options.grouping = request.group;
    options.depth = request.depth;
    options.max_rows = static_cast<size_t>(request.rows);
    print_text(fit_summary(profiled->costs) + to_text(profiled->costs.summary(options)) + "\n" +
               to_text(profiled->costs));
  }
  if (!request.folder.empty()) write_folder(request.folder, *profiled, json, request.exports);
  return 0;
}

}  // namespace

Work declare_profile(CLI::App& command) { return work_of<ProfileRequest>(command, add_options, profile); }

}  // namespace shadowgraph::cli
