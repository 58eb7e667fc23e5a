#include "cli/commands.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>

#include "cli/estimates.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "models/registry.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/time.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph::cli {
namespace {

SummaryOptions summary_options(const ProfileRequest& request) {
  SummaryOptions options;
  options.grouping = request.group == "composite"  ? SummaryGrouping::kComposite
                     : request.group == "operator" ? SummaryGrouping::kOperator
                                                   : SummaryGrouping::kModule;
  options.depth = request.depth;
  options.max_rows = static_cast<size_t>(request.rows);
  return options;
}

std::string grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace

void calibrate(const CalibrateRequest& request) {
  const std::string path = request.output.empty() ? DeviceSpec::calibration_file() : request.output;
  const DeviceSpec spec = [] {
    const Progress progress("measuring this machine");
    return shadowgraph::calibrate();
  }();
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);  // what fails, writing says
  spec.write_file(path);
  fmt::print("{}\n  matrix products up to {}FLOP/s, memory up to {}/s\n  written to {}\n", spec.title,
             human_count(static_cast<int64_t>(spec.matmul.at("float32"))),
             human_bytes(static_cast<int64_t>(spec.bandwidth)), path);
}

void list_devices(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const std::string& name : DeviceSpec::names()) list.push_back(to_json(DeviceSpec::named(name)));
    print_text(json_text(list));
    return;
  }
  fmt::print("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", "DEVICE", "MEMORY", "BYTES/S", "FLOP/S f32", "FLOP/S bf16",
             "");
  for (const std::string& name : DeviceSpec::names()) {
    const DeviceSpec spec = DeviceSpec::named(name);
    const auto rate = [&](const char* dtype) {
      const auto found = spec.matmul.find(dtype);
      return found == spec.matmul.end() ? std::string("-") : human_count(static_cast<int64_t>(found->second));
    };
    fmt::print("{:<14} {:>12} {:>12} {:>14} {:>14}  {}\n", name, human_bytes(spec.memory),
               human_bytes(static_cast<int64_t>(spec.bandwidth)), rate("float32"), rate("bfloat16"), spec.title);
  }
}

void list_models(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const auto& info : models::available()) {
      nlohmann::json entry{{"name", info.name},
                           {"description", info.description},
                           {"parameters", info.parameters},
                           {"default_batch", info.default_batch}};
      if (info.default_seq != 0) entry["default_seq"] = info.default_seq;
      if (info.default_image_size != 0) entry["default_image_size"] = info.default_image_size;
      list.push_back(std::move(entry));
    }
    print_text(json_text(list));
    return;
  }
  fmt::print("{:<14} {:>15}  {:<14} {}\n", "MODEL", "PARAMETERS", "DEFAULT INPUT", "");
  for (const auto& info : models::available()) {
    const std::string input = info.default_seq != 0
                                  ? fmt::format("{} x {}", info.default_batch, info.default_seq)
                                  : fmt::format("{} x {}^2", info.default_batch, info.default_image_size);
    fmt::print("{:<14} {:>15}  {:<14} {}\n", info.name, grouped(info.parameters), input, info.description);
  }
}

void capture_to_file(const CaptureRequest& request, const std::string& output, bool json) {
  if (kind_of_source(request.source) == SourceKind::kGraph) {
    throw Error(request.source +
                " is not a model: capture takes a built-in model, a TorchScript file or a torch.export archive; to "
                "convert a graph file use 'shadowgraph print'");
  }
  const LoadedGraph loaded = load(request);
  verify(loaded.graph);
  if (json) {
    write_file(output, json_text(to_json(loaded.graph)));
  } else {
    write_graph_file(output, loaded.graph);
  }
  std::fputs(
      fmt::format("{}: {} nodes, captured in {:.3f} s\n", output, loaded.graph.node_count(), *loaded.capture_seconds)
          .c_str(),
      stderr);
}

void profile(const ProfileRequest& request) {
  if (request.memory && !request.batches) throw Error("--memory needs a range of batches: --batch 1..512");
  if (!request.by.empty() && !request.memory) throw Error("--by says which bytes --memory is of: give --memory, too");
  if (request.batches) {
    if (!request.directory.empty()) throw Error("-o writes one graph; leave it out with a range of batches");
    if (request.measure || !request.spec.empty() || request.device_memory || request.run) {
      throw Error("--measure, --spec, --device-memory and --run are for one batch, not for a range");
    }
    profile_batches(request.capture, {*request.batches, request.memory, request.by, request.allocator, request.json});
    return;
  }
  // Before the work, so that a folder that cannot be made costs nothing.
  if (!request.directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(request.directory, error);
    if (error) throw FileError("cannot make the folder '" + request.directory + "': " + error.message());
  }
  const LoadedGraph loaded = load(request.capture);
  const Progress progress("profiling " + loaded.name);
  verify(loaded.graph);
  Estimates estimates(request, loaded.graph);
  Profile result = profile(loaded.graph, estimates.options());
  result.capture_seconds = loaded.capture_seconds;
  if (request.run) {
    const LoadedGraph steps = load_run(request.capture, /*steps=*/3);
    result.run = RunMemory::of(steps.graph, estimates.options().memory);
  }
  std::optional<nlohmann::json> json;  // worked out for whom it is
  if (request.json || !request.directory.empty()) json = to_json(result);
  if (request.json) {
    print_text(json_text(*json));
  } else {
    print_text(to_text(result.summary(summary_options(request))) + "\n" + to_text(result));
  }
  if (request.directory.empty()) return;
  const std::string folder = request.directory + "/";
  const ViewModel view = ViewModel::of(loaded.graph, {});
  const std::string dot = write_dot(view);
  write_graph_file(folder + "graph.sg", loaded.graph);
  write_file(folder + "profile.json", json_text(*json));
  write_file(folder + "graph.dot", dot);
  write_file(folder + "graph.svg", render_svg(dot));
  write_file(folder + "nodes.csv", nodes_csv(result));
  write_file(folder + "storages.csv", storages_csv(result));
  write_file(folder + "trace.json", json_text(chrome_trace(result)));
  write_file(folder + "model_explorer.json", json_text(model_explorer(result)));
  std::string written =
      "graph.sg, profile.json, graph.dot, graph.svg, nodes.csv, storages.csv, trace.json, model_explorer.json";
  if (result.out_of_memory.empty()) {
    write_file(folder + "snapshot.pickle", memory_snapshot(result, estimates.options().memory));
    written += ", snapshot.pickle";
  }
  std::fputs(fmt::format("wrote {} to {}\n", written, request.directory).c_str(), stderr);
}

void print_graph(const std::string& file, const std::string& preset, bool json) {
  const Graph graph = read_graph_file(file);
  if (json) {
    print_text(json_text(to_json(graph)));
    return;
  }
  const PrintPreset chosen = preset == "short"         ? PrintPreset::kShort
                             : preset == "fingerprint" ? PrintPreset::kFingerprint
                                                       : PrintPreset::kCanonical;
  print_text(to_text(graph, chosen));
}

void verify_graph(const std::string& file) {
  const Graph graph = read_graph_file(file);
  verify(graph);
  fmt::print("{}: {} nodes, every invariant holds\n", file, graph.node_count());
}

bool diff_graphs(const std::string& before, const std::string& after, size_t limit) {
  const Graph a = read_graph_file(before);
  const Graph b = read_graph_file(after);
  const GraphDiff diff = GraphDiff::of(a, b);
  if (diff.empty()) return false;
  print_text(fmt::format("--- {}: {} nodes\n+++ {}: {} nodes\n", before, a.node_count(), after, b.node_count()) +
             to_text(diff, a, b, limit));
  return true;
}

}  // namespace shadowgraph::cli
