#include "cli/exports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/output.h"
#include "shadowgraph/profile/traces.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

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
    {"trace", "trace.json", [](const Profiled& p) { return json_text(chrome_trace(p.costs)); }},
    {"model-explorer", "model_explorer.json", [](const Profiled& p) { return json_text(model_explorer(p.costs)); }},
    {"snapshot", "snapshot.pickle",
     [](const Profiled& p) { return memory_snapshot(p.costs, p.estimates->options().memory); }},
};

}  // namespace

std::vector<std::string> export_names() {
  std::vector<std::string> names;
  for (const Export& each : kExports) names.emplace_back(each.name);
  return names;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError("cannot make the folder '" + folder + "': " + error.message());
}

void write_folder(const std::string& folder, const Profiled& profiled, const nlohmann::json& profile,
                  const std::vector<std::string>& exports) {
  write_graph_file(folder + "/graph.sg", profiled.loaded.graph);
  write_file(folder + "/profile.json", json_text(profile));
  write_file(folder + "/report.html", to_html(profiled.costs, {.title = profiled.title}));
  std::vector<std::string> written{"graph.sg", "profile.json", "report.html"};
  for (const Export& each : kExports) {
    if (std::ranges::find(exports, each.name) == exports.end()) continue;
    // The allocator's events end where it gives up, so a snapshot would not be of the whole step.
    if (each.name == std::string("snapshot") && !profiled.costs.out_of_memory.empty()) {
      fmt::print(stderr, "shadowgraph: no snapshot is written, for the step does not fit\n");
      continue;
    }
    write_file(folder + "/" + each.file, each.text(profiled));
    written.emplace_back(each.file);
  }
  fmt::print(stderr, "wrote {} to {}\n", fmt::join(written, ", "), folder);
}

}  // namespace shadowgraph::cli
