#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "cli/commands.h"
#include "cli/output.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/time.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

using nlohmann::json;

constexpr const char* kWhole = "top_at_peak is all of it";

// The JSON of a profile: a file of it, or that of a graph.
json profile_of(const std::string& path) {
  const std::string text = read_file(path);
  if (text.starts_with('{')) {
    json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && object.contains("peak") && object.contains("nodes")) return object;
  }
  const Graph graph = read_graph_file(path);
  std::optional<DeviceSpec> spec;
  if (graph.metadata.device && graph.metadata.device->is_cuda()) spec = DeviceSpec::named("h100");
  json whole = to_json(profile(graph, {.top_at_peak = graph.storage_count(), .spec = spec ? &*spec : nullptr}));
  whole[kWhole] = true;
  return whole;
}

// Figures by name, as far as a profile has them.
class Figures {
 public:
  explicit Figures(const json& profile) : profile_(profile) {}

  std::optional<double> at(const std::string& pointer) const {
    const json::json_pointer place(pointer);
    if (!profile_.contains(place) || !profile_.at(place).is_number()) return std::nullopt;
    return profile_.at(place).get<double>();
  }
  // Sums of the modules' tree by path.
  std::map<std::string, std::map<std::string, double>> modules() const {
    std::map<std::string, std::map<std::string, double>> result;
    if (profile_.contains("modules")) collect(profile_["modules"], 0, result);
    return result;
  }
  std::map<std::string, double> operators() const {
    return profile_.contains("operators") ? profile_["operators"].get<std::map<std::string, double>>()
                                          : std::map<std::string, double>();
  }
  // Bytes alive at the peak by who made them.
  std::map<std::string, double> at_peak() const {
    std::map<std::string, double> result;
    for (const json& live : profile_.value("top_at_peak", json::array())) {
      const std::string kind = live.value("kind", "");
      const std::string module = live.value("module", "");
      result[kind + " " + (module.empty() ? "" : module + " ") + live.value("op", "")] += live.value("bytes", 0.0);
    }
    return result;
  }

 private:
  static void collect(const json& module, int depth, std::map<std::string, std::map<std::string, double>>& result) {
    if (depth > 64) return;
    auto& row = result[module.value("path", "")];
    for (const char* key :
         {"saved_activation_bytes", "output_bytes", "temporary_bytes", "backward_bytes", "parameter_bytes"}) {
      row[key] += module.value(key, 0.0);
    }
    for (const char* phase : {"forward", "backward"}) {
      if (module.contains("flops")) row[std::string(phase) + "_flops"] += module["flops"].value(phase, 0.0);
    }
    for (const json& child : module.value("children", json::array())) collect(child, depth + 1, result);
  }
  const json& profile_;
};

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
  std::string what;
  std::string figure;
  double before = 0;
  double after = 0;
};

std::vector<Change> changes_of(const std::map<std::string, double>& before, const std::map<std::string, double>& after,
                               const std::string& figure) {
  std::set<std::string> names;
  for (const auto& [name, value] : before) names.insert(name);
  for (const auto& [name, value] : after) names.insert(name);
  std::vector<Change> changes;
  for (const std::string& name : names) {
    const auto of = [&](const auto& map) { return map.contains(name) ? map.at(name) : 0.0; };
    if (of(before) != of(after)) changes.push_back({name, figure, of(before), of(after)});
  }
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::abs(a.after - a.before) > std::abs(b.after - b.before);
  });
  return changes;
}

}  // namespace

void compare(const std::string& before_path, const std::string& after_path, size_t limit, bool as_json) {
  const json before_json = profile_of(before_path);
  const json after_json = profile_of(after_path);
  const Figures before(before_json);
  const Figures after(after_json);

  std::vector<Change> totals;
  for (const char* pointer :
       {"/nodes", "/parameters", "/parameter_bytes", "/saved_activation_bytes", "/peak/bytes",
        "/peak_with_scratch/bytes", "/device_memory/reserved_peak_bytes", "/static_plan/bytes", "/flops/forward",
        "/flops/backward", "/flops/optimizer", "/time/seconds", "/time/waiting_seconds"}) {
    const auto a = before.at(pointer);
    const auto b = after.at(pointer);
    if (!a && !b) continue;
    std::string name(pointer + 1);
    std::replace(name.begin(), name.end(), '/', ' ');
    totals.push_back({name, name, a.value_or(0), b.value_or(0)});
  }
  std::vector<Change> modules;
  const auto tree_before = before.modules();
  const auto tree_after = after.modules();
  for (const char* figure :
       {"saved_activation_bytes", "parameter_bytes", "forward_flops", "backward_flops", "temporary_bytes"}) {
    const auto column = [&](const auto& tree) {
      std::map<std::string, double> values;
      for (const auto& [path, row] : tree) {
        if (!path.empty() && row.contains(figure)) values[path] = row.at(figure);
      }
      return values;
    };
    auto changed = changes_of(column(tree_before), column(tree_after), figure);
    modules.insert(modules.end(), changed.begin(), changed.end());
  }
  // A file of a profile has the largest few storages alone, so the lists can be told apart only if both are of graphs.
  const bool lists = before_json.contains(kWhole) && after_json.contains(kWhole);
  const auto peak = lists ? changes_of(before.at_peak(), after.at_peak(), "bytes") : std::vector<Change>();
  const auto operators = changes_of(before.operators(), after.operators(), "calls");

  if (as_json) {
    const auto rows = [&](const std::vector<Change>& changes, bool all) {
      json list = json::array();
      for (const Change& c : changes) {
        if (all || list.size() < limit || limit == 0) {
          list.push_back({{"what", c.what}, {"figure", c.figure}, {"before", c.before}, {"after", c.after}});
        }
      }
      return list;
    };
    print_text(json_text({{"totals", rows(totals, true)},
                          {"at_peak", rows(peak, false)},
                          {"modules", rows(modules, false)},
                          {"operators", rows(operators, false)}}));
    return;
  }
  fmt::print("{:<34} {:>14} {:>14}  {}\n", "", "before", "after", "change");
  for (const Change& c : totals) {
    fmt::print("{:<34} {:>14} {:>14}  {}\n", c.what, in_unit(c.figure, c.before), in_unit(c.figure, c.after),
               c.before == c.after ? "" : change(c.figure, c.before, c.after));
  }
  const auto print = [&](const char* title, const std::vector<Change>& changes, bool with_figure) {
    if (changes.empty()) return;
    fmt::print("\n{}\n", title);
    for (size_t i = 0; i < changes.size() && (limit == 0 || i < limit); ++i) {
      const Change& c = changes[i];
      fmt::print("  {:>24}  {} -> {}  {}{}\n", change(c.figure, c.before, c.after), in_unit(c.figure, c.before),
                 in_unit(c.figure, c.after), c.what, with_figure ? " " + c.figure : "");
    }
    if (limit != 0 && changes.size() > limit)
      fmt::print("  and {} more (--limit 0 shows all)\n", changes.size() - limit);
  };
  print("what is alive at the peak", peak, false);
  if (!lists) fmt::print("\nwhat is alive at the peak: in graph files, not in profile.json\n");
  print("modules", modules, true);
  print("calls of operators", operators, false);
}

}  // namespace shadowgraph::cli
