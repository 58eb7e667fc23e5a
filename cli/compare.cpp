// `shadowgraph compare`: differences of two programs as totals and modules, node by node, or as an HTML page.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "cli/estimates.h"
#include "cli/figures.h"
#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/traces.h"
#include "support/json.h"
#include "support/suggestion.h"

namespace shadowgraph::cli {
namespace {

using nlohmann::json;

constexpr const char* kWhole = "top_at_peak is all of it";
constexpr int kDifferent = 1;  // exit code of --nodes, as of diff(1)
constexpr const char* kPage = "Page (-o)";
constexpr const char* kTimes = "Estimates (with -o or a trace)";

struct CompareRequest {
  CaptureRequest capture;  // for both sources, unless they are saved graphs
  std::string before, after;
  bool nodes = false;           // node by node
  std::optional<size_t> limit;  // maximum lines of a list; 0: all; empty: 10, or 200 nodes
  bool json = false;
  std::string page;  // HTML file; empty: text
  std::string title;
  std::string color;  // file of node values; empty: none
  EstimateRequest estimate;
};

CaptureRequest capture_of(const CompareRequest& request, const std::string& source) {
  CaptureRequest capture = request.capture;
  capture.source = source;
  // --checkpoint applies to captures only, so that a saved graph can be compared with its checkpointed version.
  if (kind_of_source(source) == SourceKind::kGraph) capture.checkpoint.clear();
  return capture;
}

// Reads a JSON file that is not a saved graph and should be a profile; null for anything else.
json saved_profile(const std::string& source) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(source, ignored)) return {};
  const std::string text = read_file(source);
  if (!text.starts_with('{')) return {};
  json object = parse_json(text, source);
  return object.contains("shadowgraph") ? json() : object;
}

// Returns the profile of a source as JSON, read from profile.json or computed.
json profile_of(const CompareRequest& request, const std::string& source) {
  if (json saved = saved_profile(source); !saved.is_null()) {
    if (!saved.contains("peak") || !saved.contains("nodes")) {
      throw Error(source + " is JSON, but neither a profile.json nor a saved graph");
    }
    refuse_keys_outside_schema(JsonPlace(saved, source));
    return saved;
  }
  const Graph graph = load(capture_of(request, source)).graph;
  std::optional<DeviceSpec> spec;
  if (graph.metadata.device && graph.metadata.device->is_cuda()) spec = DeviceSpec::named("h100");
  json whole = to_json(profile(graph, {.top_at_peak = graph.storage_count(), .spec = spec ? &*spec : nullptr}));
  whole[kWhole] = true;
  return whole;
}

std::string in_unit(const std::string& name, double value) {
  if (name.find("seconds") != name.npos) return human_seconds(value);
  if (name.find("bytes") != name.npos) return human_bytes(static_cast<int64_t>(value));
  return human_count(static_cast<int64_t>(value));
}
std::string change(const std::string& name, double before, double after) {
  const double delta = after - before;
  const std::string sign = delta < 0 ? "-" : "+";
  std::string text = sign + in_unit(name, std::abs(delta));
  if (before > 0) text += fmt::format(" ({}{:.1f} %)", sign, 100 * std::abs(delta) / before);
  return text;
}

struct Change {
  std::string what, figure;
  double before = 0, after = 0;
};

std::vector<Change> changes_of(const std::map<std::string, double>& before, const std::map<std::string, double>& after,
                               const std::string& figure) {
  std::map<std::string, std::pair<double, double>> values;
  for (const auto& [name, value] : before) values[name].first = value;
  for (const auto& [name, value] : after) values[name].second = value;
  std::vector<Change> changes;
  for (const auto& [name, value] : values) {
    if (value.first != value.second) changes.push_back({name, figure, value.first, value.second});
  }
  std::ranges::stable_sort(changes, std::ranges::greater(),
                           [](const Change& change) { return std::abs(change.after - change.before); });
  return changes;
}

std::vector<Change> changed_totals(const Figures& before, const Figures& after) {
  std::vector<Change> totals;
  for (const char* path :
       {"nodes", "parameters", "parameter_bytes", "saved_activation_bytes", "peak/bytes", "peak_with_scratch/bytes",
        "device_memory/reserved_peak_bytes", "memory_layout/bytes", "flops/forward", "flops/backward",
        "flops/optimizer", "time/seconds", "time/waiting_seconds"}) {
    const auto a = before.at(path), b = after.at(path);
    if (!a && !b) continue;
    std::string name(path);
    std::replace(name.begin(), name.end(), '/', ' ');
    totals.push_back({name, name, a.value_or(0), b.value_or(0)});
  }
  return totals;
}

std::vector<Change> changed_modules(const Figures& before, const Figures& after) {
  const auto tree_before = before.modules(), tree_after = after.modules();
  std::vector<Change> modules;
  for (const char* figure :
       {"saved_activation_bytes", "parameter_bytes", "forward_flops", "backward_flops", "temporary_bytes"}) {
    const auto column = [&](const auto& tree) {
      std::map<std::string, double> values;
      for (const auto& [path, row] : tree) {
        if (!path.empty() && row.contains(figure)) values[path] = row.at(figure);
      }
      return values;
    };
    const auto changed = changes_of(column(tree_before), column(tree_after), figure);
    modules.insert(modules.end(), changed.begin(), changed.end());
  }
  return modules;
}

// `limit` 0: all.
json to_json(const std::vector<Change>& changes, size_t limit) {
  json list = json::array();
  for (const Change& c : changes) {
    if (limit != 0 && list.size() == limit) break;
    list.push_back({{"what", c.what}, {"figure", c.figure}, {"before", c.before}, {"after", c.after}});
  }
  return list;
}

std::string text_of_totals(const std::vector<Change>& totals) {
  std::string text = fmt::format("{:<34} {:>14} {:>14}  {}\n", "", "before", "after", "change");
  for (const Change& c : totals) {
    text += fmt::format("{:<34} {:>14} {:>14}  {}\n", c.what, in_unit(c.figure, c.before), in_unit(c.figure, c.after),
                        c.before == c.after ? "" : change(c.figure, c.before, c.after));
  }
  return text;
}

std::string text_of_changes(const char* title, const std::vector<Change>& changes, size_t limit, bool with_figure) {
  if (changes.empty()) return {};
  std::string text = fmt::format("\n{}\n", title);
  for (size_t i = 0; i < changes.size() && (limit == 0 || i < limit); ++i) {
    const Change& c = changes[i];
    text += fmt::format("  {:>24}  {} -> {}  {}{}\n", change(c.figure, c.before, c.after), in_unit(c.figure, c.before),
                        in_unit(c.figure, c.after), c.what, with_figure ? " " + c.figure : "");
  }
  if (limit != 0 && changes.size() > limit) {
    text += fmt::format("  and {} more (--limit 0 shows all)\n", changes.size() - limit);
  }
  return text;
}

int compare_metrics(const CompareRequest& request) {
  const json before_json = profile_of(request, request.before);
  const json after_json = profile_of(request, request.after);
  const Figures before(before_json, request.before);
  const Figures after(after_json, request.after);
  const std::vector<Change> totals = changed_totals(before, after);
  const std::vector<Change> modules = changed_modules(before, after);
  // profile.json lists only the largest storages, so these lists are compared only if both sources are graphs.
  const bool lists = before_json.contains(kWhole) && after_json.contains(kWhole);
  const auto peak = lists ? changes_of(before.at_peak(), after.at_peak(), "bytes") : std::vector<Change>();
  const auto operators = changes_of(before.operators(), after.operators(), "calls");
  const size_t limit = request.limit.value_or(10);
  if (request.json) {
    print_text(json_text({{"totals", to_json(totals, 0)},
                          {"at_peak", to_json(peak, limit)},
                          {"modules", to_json(modules, limit)},
                          {"operators", to_json(operators, limit)}}));
    return 0;
  }
  print_text(text_of_totals(totals) + text_of_changes("alive at the peak", peak, limit, false) +
             (lists ? "" : "\nalive at the peak: not available for profile.json; compare graph files instead\n") +
             text_of_changes("modules", modules, limit, true) +
             text_of_changes("calls of operators", operators, limit, false));
  return 0;
}

int compare_nodes(const CompareRequest& request) {
  const Graph a = load(capture_of(request, request.before)).graph;
  const Graph b = load(capture_of(request, request.after)).graph;
  const GraphDiff diff = GraphDiff::of(a, b);
  if (diff.empty()) return 0;
  print_text(fmt::format("--- {}: {} nodes\n+++ {}: {} nodes\n", request.before, a.node_count(), request.after,
                         b.node_count()) +
             to_text(diff, a, b, request.limit.value_or(200)));
  return kDifferent;
}

int write_comparison(const CompareRequest& request) {
  const auto after = load_and_profile(capture_of(request, request.after), request.estimate);
  HtmlOptions options{.title = request.title.empty() ? after->title : request.title};
  std::unique_ptr<Profiled> before;
  if (const json saved = saved_profile(request.before); !saved.is_null()) {
    options.before_json = read_file(request.before);
  } else {
    before = load_and_profile(capture_of(request, request.before), request.estimate);
    options.before = &before->costs;
  }
  options.before_title = before ? before->title : request.before;
  std::optional<NodeColors> values;
  if (!request.color.empty()) {
    values = node_colors_of_file(after->loaded.graph, request.color);
    options.values = &*values;
  }
  write_page(request.page, *after, options);
  return 0;
}

// Compares a prediction with AFTER, a trace recorded by torch.profiler.
int compare_with_trace_file(const CompareRequest& request) {
  const TraceComparison comparison = [&] {
    if (is_trace_file(request.before)) return compare_traces(request.before, request.after);
    if (!saved_profile(request.before).is_null()) {
      throw Error(request.before + " has no times per call; compare the trace with graph.sg, a model or another trace");
    }
    const auto profiled = load_and_profile(capture_of(request, request.before), request.estimate);
    return compare_with_trace(profiled->costs, request.after);
  }();
  print_text(request.json ? json_text(shadowgraph::to_json(comparison))
                          : to_text(comparison, request.limit.value_or(10)));
  return 0;
}

int compare(const CLI::App& command, const CompareRequest& request) {
  if (is_trace_file(request.after)) {
    takes_none_of(command, "a profiler trace", {"--nodes", "-o", kPage});
    return compare_with_trace_file(request);
  }
  if (is_trace_file(request.before)) {
    throw CLI::ValidationError("AFTER", "the trace must come second: shadowgraph compare PREDICTION TRACE");
  }
  if (!request.page.empty()) {
    takes_none_of(command, "-o", {"--nodes", "--json", "--limit"});
    return write_comparison(request);
  }
  takes_none_of(command, "text output; add -o PAGE.html", {kPage, kTimes});
  if (!request.nodes) return compare_metrics(request);
  takes_none_of(command, "--nodes", {"--json"});
  return compare_nodes(request);
}

void add_options(CLI::App& command, CompareRequest& request) {
  add_untrusted(command, request.capture);
  add_source(command, "BEFORE", request.before, request.capture,
             "Reference: a SOURCE as in profile, or a profile.json");
  add_source(command, "AFTER", request.after, request.capture,
             "A SOURCE, profile.json or torch.profiler trace; options apply to sources that are captured");
  add_capture_options(command, request.capture);
  begin_group(command, kOutput);
  command.add_flag("--nodes", request.nodes, "Compare node by node; exit code 1 if they differ, as diff(1)");
  command.add_option("-o,--output", request.page, "Write an HTML page of AFTER that highlights the differences");
  add_number(command, "--limit", request.limit, 0, "Maximum lines of a list (0: all; default: 10, or 200 nodes)");
  command.add_flag("--json", request.json, "Print JSON");
  begin_group(command, kTimes);
  add_estimate_options(command, request.estimate);
  begin_group(command, kPage);
  command.add_option("--title", request.title, "Title of the page (default: the model or file)");
  command.add_option("--color", request.color, "Node values to color by: FILE.json, FILE.csv or FILE.csv:COLUMN");
  command.footer(
      "Examples:\n"
      "  shadowgraph compare before.sg after.sg --nodes\n"
      "  shadowgraph compare resnet18 resnet50 --mode train -o grown.html\n"
      "  shadowgraph compare step.sg kineto.json.gz --spec mine.json");
}

}  // namespace

Work declare_compare(CLI::App& command) { return work_of<CompareRequest>(command, add_options, compare); }

}  // namespace shadowgraph::cli
