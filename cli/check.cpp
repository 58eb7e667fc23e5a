// `shadowgraph check`: checks a program's memory and time against a baseline, for CI of pull requests.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <compare>
#include <filesystem>
#include <map>
#include <vector>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"
#include "support/json.h"
#include "support/text.h"

namespace shadowgraph::cli {
namespace {

using nlohmann::json;

// The origin of a storage or a kernel.
struct Maker {
  std::string kind;    // storage kind, "activation", or the kernel's phase, "backward"
  std::string module;  // path; "" outside of modules
  std::string op;      // operator; placeholders include their name: "sg::parameter fc.weight"
  friend auto operator<=>(const Maker&, const Maker&) = default;
};

// Totals of a program, broken down by origin. A file is byte-identical on every machine: integers, sorted names, no
// measurements, no dates. Times are rounded to nanoseconds to hide floating-point noise.
struct Baseline {
  using Amounts = std::map<Maker, int64_t>;

  std::string program;  // description of the capture: "gpt2, train, sgd, f32, cuda:0"
  std::string spec;     // device of the time estimate
  int64_t peak = 0;     // peak bytes on the device
  int64_t time = 0;     // nanoseconds of the step
  int64_t saved = 0;    // bytes of activations saved for backward
  int64_t parameters = 0;
  int64_t flops = 0;
  Amounts at_peak;  // bytes
  Amounts kernels;  // nanoseconds

  static Baseline of(const Graph& graph, const DeviceSpec& spec);
  // Reads the output of to_json(). `name` is used in messages. Throws ParseError.
  static Baseline from_json(const nlohmann::json& json, const std::string& name);
  nlohmann::json to_json() const;
};

constexpr const char* kBaselineFormat = "shadowgraph-baseline";
constexpr int64_t kMost = int64_t{1} << 62;

int64_t nanoseconds(double seconds) {
  if (seconds * 1e9 < static_cast<double>(kMost)) return std::llround(seconds * 1e9);
  throw Error(fmt::format("a step of {:g} s does not fit in a baseline; check the rates of the device spec", seconds));
}

std::string description_of(const Graph& graph) {
  const Metadata& metadata = graph.metadata;
  std::string text = metadata.model.value_or("a graph");
  if (metadata.mode) text += metadata.mode == ProgramMode::kTrain ? ", train" : ", infer";
  if (metadata.optimizer) text += ", " + *metadata.optimizer;
  if (metadata.dtype) text += fmt::format(", {}", c10::toString(*metadata.dtype));
  if (metadata.batch) text += fmt::format(", batch {}", *metadata.batch);
  if (metadata.seq) text += fmt::format(", sequence {}", *metadata.seq);
  if (metadata.step == TrainingStep::kSteady) text += ", steady state";
  if (metadata.device) text += ", " + metadata.device->str();
  return text;
}

// Path of the module that a node's time is attributed to. A backward node counts for its forward node's module.
std::string module_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool linked = node.phase == Graph::kBackward && node.forward.valid() && !graph.is_erased(node.forward);
  RegionId region = linked ? graph.node(node.forward).region : node.region;
  for (; region.valid(); region = graph.region(region).parent) {
    if (graph.region(region).kind == RegionKind::kModule) return std::string(graph.text(graph.region(region).name));
  }
  return {};
}

json json_of_amounts(const Baseline::Amounts& amounts) {
  json rows = json::array();
  for (const auto& [maker, amount] : amounts) rows.push_back({maker.kind, maker.module, maker.op, amount});
  return rows;
}

Baseline::Amounts amounts_in(const JsonPlace& rows) {
  Baseline::Amounts amounts;
  for (const JsonPlace& row : rows.elements()) {
    if (row.size() != 4) row.fail("is not [kind, module, operator, amount]");
    amounts[{row[0].text(), row[1].text(), row[2].text()}] += row[3].integer(0, kMost);
  }
  return amounts;
}

Baseline Baseline::of(const Graph& graph, const DeviceSpec& spec) {
  const Profile costs = profile(graph, {.top_at_peak = graph.storage_count(), .spec = &spec});
  Baseline baseline{.program = description_of(graph), .spec = spec.name};
  baseline.peak = costs.peak.bytes;
  baseline.time = nanoseconds(
      costs.time()->per_step(costs.overlap() != nullptr ? costs.overlap()->seconds() : costs.time()->seconds()));
  baseline.saved = costs.saved.activations;
  baseline.parameters = costs.size.parameter_bytes;
  for (const auto& [phase, flops] : costs.flops)
    baseline.flops += flops.matmul + flops.elementwise + flops.transcendental;
  for (const LiveStorage& live : costs.top_at_peak) {
    baseline.at_peak[{std::string(to_string(live.kind)), live.module, live.producer}] += live.bytes;
  }
  std::map<Maker, double> seconds;
  for (const NodeId node : graph.nodes()) {
    const double own = costs.time()->of(node).seconds;
    if (own > 0)
      seconds[{graph.phase_name(graph.node(node).phase), module_of(graph, node), graph.target(node).name()}] += own;
  }
  for (const auto& [maker, sum] : seconds) baseline.kernels[maker] = nanoseconds(sum);
  return baseline;
}

json Baseline::to_json() const {
  return {{"format", kBaselineFormat},
          {"version", 1},
          {"program", program},
          {"spec", spec},
          {"peak_bytes", peak},
          {"nanoseconds", time},
          {"saved_activation_bytes", saved},
          {"parameter_bytes", parameters},
          {"flops", flops},
          {"at_peak", json_of_amounts(at_peak)},
          {"kernels", json_of_amounts(kernels)}};
}

Baseline Baseline::from_json(const json& json, const std::string& name) {
  const JsonPlace place(json, name);
  if (!place.is_object() || place.text_or("format", "") != kBaselineFormat) {
    throw ParseError(
        fmt::format("{} is not a baseline; create one with 'shadowgraph check {} SOURCE --update'", name, name), 0, 0);
  }
  if (place["version"].integer() != 1) place["version"].fail("is not 1; recreate the baseline with --update");
  const auto amount = [&](const char* key) { return place[key].integer(0, kMost); };
  Baseline baseline{.program = place["program"].text(),
                    .spec = place["spec"].text(),
                    .peak = amount("peak_bytes"),
                    .time = amount("nanoseconds"),
                    .saved = amount("saved_activation_bytes"),
                    .parameters = amount("parameter_bytes"),
                    .flops = amount("flops"),
                    .at_peak = amounts_in(place["at_peak"]),
                    .kernels = amounts_in(place["kernels"])};
  place.refuse_other_keys("a baseline");
  return baseline;
}

constexpr int kGrew = 4;  // exit code; errors are 1 to 3

struct CheckRequest {
  CaptureRequest capture;
  std::string baseline, spec, max_peak = "+1%", max_time = "+5%";
  bool update = false, markdown = false, json = false;
  int rows = 10;
};

// Upper limit of a metric: relative to the baseline, in bytes above it, or absolute.
struct Limit {
  std::string text;
  std::optional<double> share;  // 0.01
  std::optional<int64_t> above, most;

  int64_t of(int64_t before) const {
    if (share) return before + static_cast<int64_t>(std::floor(static_cast<double>(before) * *share));
    return above ? before + *above : *most;
  }
};

// Parses "+1%" and, with `sizes`, "+200MiB" and "24GiB".
std::optional<Limit> parse_limit(const std::string& text, bool sizes) {
  Limit limit{.text = text};
  const bool plus = text.starts_with('+');
  const std::string rest = text.substr(plus ? 1 : 0);
  if (plus && rest.ends_with('%')) {
    const auto percent = parse_number<double>(rest.substr(0, rest.size() - 1));
    if (!percent || !(*percent >= 0 && *percent <= 1e6)) return {};
    limit.share = *percent / 100;
    return limit;
  }
  const auto bytes = sizes && rest.ends_with('B') ? parse_bytes(rest) : std::nullopt;
  if (!bytes) return {};
  (plus ? limit.above : limit.most) = *bytes;
  return limit;
}

CLI::Validator limit_check(bool sizes) {
  return {[sizes](const std::string& text) {
            if (parse_limit(text, sizes)) return std::string();
            return "'" + text +
                   (sizes ? "' is not a limit such as +1%, +200MiB or 24GiB" : "' is not a limit such as +5%");
          },
          ""};
}

// Growth by origin. Origins in layers that differ only in their index share a row.
struct Growth {
  std::string kind, module, op;
  int64_t makers = 0, before = 0, after = 0;
  int64_t delta() const { return after - before; }
};

// "layers.3.mlp" becomes "layers.*.mlp". Unnamed inputs such as optimizer state are numbered: "sg::input input38".
std::string starred(const std::string& path) {
  constexpr std::string_view kUnnamed = "sg::input input";
  if (path.starts_with(kUnnamed)) return std::string(kUnnamed) + "*";
  std::string text;
  for (size_t at = 0, end = 0; at <= path.size(); at = end + 1) {
    end = std::min(path.find('.', at), path.size());
    const std::string step = path.substr(at, end - at);
    const bool number = !step.empty() && step.find_first_not_of("0123456789") == step.npos;
    text += (at == 0 ? "" : ".") + (number ? "*" : step);
  }
  return text;
}

// Sorted by growth, largest first; decreases are left out.
std::vector<Growth> growth_of(const Baseline::Amounts& before, const Baseline::Amounts& after) {
  std::map<Maker, std::pair<int64_t, int64_t>> amounts;  // before and after
  for (const auto& [maker, amount] : before) amounts[maker].first = amount;
  for (const auto& [maker, amount] : after) amounts[maker].second = amount;
  std::map<Maker, Growth> rows;
  for (const auto& [maker, amount] : amounts) {
    const auto [was, is] = amount;
    if (was == is) continue;
    Growth& row = rows[{maker.kind, starred(maker.module), starred(maker.op)}];
    row.kind = maker.kind;
    row.module = row.makers == 0 ? maker.module : starred(maker.module);
    row.op = row.makers == 0 ? maker.op : starred(maker.op);
    ++row.makers;
    row.before += was;
    row.after += is;
  }
  std::vector<Growth> grown;
  for (auto& [key, row] : rows) {
    if (row.delta() > 0) grown.push_back(std::move(row));
  }
  std::ranges::stable_sort(grown, std::ranges::greater(), &Growth::delta);
  return grown;
}

struct Metric {
  std::string name;
  int64_t before, after;
  std::string (*text)(int64_t amount);
  std::optional<Limit> limit;  // none: reported, but not checked
  bool grew() const { return limit && after > limit->of(before); }
};

struct CheckResult {
  Baseline before, after;
  std::vector<Metric> metrics;
  std::vector<Growth> at_peak, kernels;
  bool grew() const { return std::ranges::any_of(metrics, &Metric::grew); }
};

std::string text_of_nanoseconds(int64_t time) { return human_seconds(static_cast<double>(time) * 1e-9); }

CheckResult compare_baselines(Baseline before, Baseline after, const CheckRequest& request) {
  CheckResult result{.before = std::move(before), .after = std::move(after)};
  const Baseline& a = result.before;
  const Baseline& b = result.after;
  result.metrics = {
      {"peak memory", a.peak, b.peak, human_bytes, parse_limit(request.max_peak, true)},
      {fmt::format("time on {}", b.spec), a.time, b.time, text_of_nanoseconds, parse_limit(request.max_time, false)},
      {"saved for backward", a.saved, b.saved, human_bytes},
      {"parameters", a.parameters, b.parameters, human_bytes},
      {"FLOPs", a.flops, b.flops, human_count}};
  result.at_peak = growth_of(a.at_peak, b.at_peak);
  result.kernels = growth_of(a.kernels, b.kernels);
  return result;
}

std::string change_text(int64_t before, int64_t after, std::string (*text)(int64_t)) {
  if (before == after) return "";
  const std::string sign = after < before ? "-" : "+";
  std::string change = sign + text(std::abs(after - before));
  if (before > 0) {
    change += fmt::format(" ({}{:.1f} %)", sign,
                          100 * std::abs(static_cast<double>(after - before)) / static_cast<double>(before));
  }
  return change;
}

std::string headline(const CheckResult& result) {
  std::string grown;
  for (const Metric& metric : result.metrics) {
    if (metric.grew()) grown += std::string(grown.empty() ? "" : " and ") + metric.name;
  }
  return grown.empty() ? "within the limits" : grown + " grew";
}

std::string verdict_of(const Metric& metric) {
  if (!metric.limit) return "";
  return metric.grew() ? "above " + metric.limit->text : "within " + metric.limit->text;
}

std::string maker_text(const Growth& row) {
  std::string text = row.op + (row.module.empty() ? "" : " in " + row.module);
  if (row.makers > 1) text += fmt::format(" ({} of them)", row.makers);
  return text;
}

template <class Row>
void each_row(const std::vector<Growth>& growth, int rows, std::string& text, const char* prefix, const Row& row) {
  const size_t most = rows == 0 ? growth.size() : static_cast<size_t>(rows);
  for (size_t i = 0; i < std::min(most, growth.size()); ++i) text += row(growth[i]);
  if (growth.size() > most) text += fmt::format("{}and {} more (--rows 0)\n", prefix, growth.size() - most);
}

std::string to_text(const CheckResult& result, int rows) {
  std::string text = headline(result) + "\n";
  if (result.before.program != result.after.program) {
    text += fmt::format("baseline program: {}\ncurrent program:  {}\n", result.before.program, result.after.program);
  }
  for (const Metric& metric : result.metrics) {
    text += fmt::format("  {:<20}{:>14} {:>14}  {:<24}{}\n", metric.name, metric.text(metric.before),
                        metric.text(metric.after), change_text(metric.before, metric.after, metric.text),
                        verdict_of(metric));
  }
  const auto table = [&](const char* title, const std::vector<Growth>& growth, std::string (*amount)(int64_t)) {
    if (growth.empty()) return;
    text += fmt::format("\n{}\n", title);
    each_row(growth, rows, text, "  ", [&](const Growth& row) {
      return fmt::format("  {:<24}{:>14}  {} {}\n", change_text(row.before, row.after, amount), amount(row.after),
                         row.kind, maker_text(row));
    });
  };
  table("growth at the memory peak", result.at_peak, human_bytes);
  table("slower kernels", result.kernels, text_of_nanoseconds);
  return text;
}

// Escapes a name, which comes from the program, for a table cell.
std::string cell(std::string_view name) {
  std::string text;
  for (const char c : xml_text(plain_text(name))) {
    if (std::string_view("|`*_[]\\").find(c) != std::string_view::npos) text += '\\';
    text += c;
    if (c == '@') text += "<!-- -->";  // else it would mention, and notify, a user
  }
  return text;
}

std::string to_markdown(const CheckResult& result, int rows) {
  std::string text = fmt::format("### shadowgraph: {}\n\n", headline(result));
  if (result.before.program != result.after.program) {
    text += fmt::format("Baseline program: {}. Current program: {}.\n\n", cell(result.before.program),
                        cell(result.after.program));
  }
  text += "| | baseline | now | change | limit |\n|---|--:|--:|--:|---|\n";
  for (const Metric& metric : result.metrics) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", cell(metric.name), metric.text(metric.before),
                        metric.text(metric.after), change_text(metric.before, metric.after, metric.text),
                        metric.grew() ? "**" + verdict_of(metric) + "**" : verdict_of(metric));
  }
  const auto table = [&](const char* title, const std::vector<Growth>& growth, std::string (*amount)(int64_t)) {
    if (growth.empty()) return;
    text +=
        fmt::format("\n{}\n\n| operator | module | | baseline | now | change |\n|---|---|---|--:|--:|--:|\n", title);
    each_row(growth, rows, text, "\n", [&](const Growth& row) {
      return fmt::format("| {} | {}{} | {} | {} | {} | {} |\n", cell(row.op), cell(row.module),
                         row.makers > 1 ? fmt::format(" ({} of them)", row.makers) : "", cell(row.kind),
                         amount(row.before), amount(row.after), change_text(row.before, row.after, amount));
    });
  };
  table("Growth at the memory peak:", result.at_peak, human_bytes);
  table("Slower kernels:", result.kernels, text_of_nanoseconds);
  return text;
}

json to_json(const CheckResult& result) {
  json object{{"grew", result.grew()},           {"baseline_program", result.before.program},
              {"program", result.after.program}, {"spec", result.after.spec},
              {"figures", json::array()},        {"at_peak", json::array()},
              {"kernels", json::array()}};
  for (const Metric& metric : result.metrics) {
    json row{{"name", metric.name}, {"before", metric.before}, {"after", metric.after}};
    if (metric.limit) row.update({{"limit", metric.limit->of(metric.before)}, {"grew", metric.grew()}});
    object["figures"].push_back(std::move(row));
  }
  const auto add = [&](const char* name, const std::vector<Growth>& growth) {
    for (const Growth& row : growth) {
      object[name].push_back({{"kind", row.kind},
                              {"module", row.module},
                              {"operator", row.op},
                              {"makers", row.makers},
                              {"before", row.before},
                              {"after", row.after}});
    }
  };
  add("at_peak", result.at_peak);
  add("kernels", result.kernels);
  return object;
}

// A CPU's spec is measured on this machine, so the result would depend on it: it is used only if named explicitly.
DeviceSpec spec_of(const CheckRequest& request, const std::string& of_baseline) {
  return Machine::find(request.spec.empty() ? of_baseline : request.spec).specs();
}

Baseline now(const CheckRequest& request, const DeviceSpec& spec) {
  const LoadedGraph loaded = load(request.capture);
  const Progress progress("profiling " + loaded.name);
  verify(loaded.graph);
  return Baseline::of(loaded.graph, spec);
}

int update(const CLI::App& command, const CheckRequest& request) {
  takes_none_of(command, "--update", {"--max-peak", "--max-time", "--markdown", "--json", "--rows"});
  const Baseline baseline = now(request, spec_of(request, ""));
  write_file(request.baseline, shadowgraph::json_text(baseline.to_json(), 1) + "\n");
  print_log("{}: {} at the peak, {} a step on {}\n", request.baseline, human_bytes(baseline.peak),
            text_of_nanoseconds(baseline.time), baseline.spec);
  return 0;
}

int check(const CLI::App& command, const CheckRequest& request) {
  if (request.update) return update(command, request);
  if (request.json) takes_none_of(command, "--json", {"--markdown", "--rows"});
  std::error_code ignored;
  if (!std::filesystem::exists(request.baseline, ignored)) {
    throw FileError(fmt::format("the baseline '{}' does not exist; create it with --update", request.baseline));
  }
  Baseline before = Baseline::from_json(parse_json(read_file(request.baseline), request.baseline), request.baseline);
  const DeviceSpec spec = spec_of(request, before.spec);
  if (spec.name != before.spec) {
    throw Error(fmt::format("{} was written for {}, not for {}; remove --spec, or recreate the baseline with --update",
                            request.baseline, before.spec, spec.name));
  }
  const CheckResult result = compare_baselines(std::move(before), now(request, spec), request);
  print_text(request.json       ? json_text(to_json(result))
             : request.markdown ? to_markdown(result, request.rows)
                                : to_text(result, request.rows));
  return result.grew() ? kGrew : 0;
}

void add_options(CLI::App& command, CheckRequest& request) {
  command.add_option("BASELINE", request.baseline, "Baseline file, written by --update")->required();
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  command.add_option("--spec", request.spec,
                     "Device for time estimates: a name from 'list devices' or a spec file (default: h100)");
  begin_group(command, "Check");
  command.add_option("--max-peak", request.max_peak, "Peak memory limit: +1% or +200MiB above the baseline, or 24GiB")
      ->check(limit_check(true))
      ->capture_default_str();
  command.add_option("--max-time", request.max_time, "Step time limit above the baseline: +5%")
      ->check(limit_check(false))
      ->capture_default_str();
  command.add_flag("--update", request.update, "Write BASELINE instead of checking");
  begin_group(command, kOutput);
  command.add_flag("--markdown", request.markdown, "Print Markdown for a pull request comment");
  command.add_flag("--json", request.json, "Print JSON");
  add_number(command, "--rows", request.rows, 0, "Maximum rows of a table (0: all)");
  command.footer(
      "Exit code 4: something grew beyond its limit.\n"
      "\n"
      "Examples:\n"
      "  shadowgraph check baseline.json gpt2 --mode train --update\n"
      "  shadowgraph check baseline.json gpt2 --mode train --max-peak +1% --max-time +5% --markdown\n"
      "  shadowgraph check baseline.json step.sg --max-peak 24GiB");
}

}  // namespace

Work declare_check(CLI::App& command) { return work_of<CheckRequest>(command, add_options, check); }

}  // namespace shadowgraph::cli
