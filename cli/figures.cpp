#include "cli/figures.h"

#include <algorithm>
#include <vector>

namespace shadowgraph::cli {
namespace {

constexpr int kDeepestModule = 64;

std::vector<JsonPlace> elements_of(const JsonPlace& object, const char* key) {
  const auto list = object.find(key);
  return list ? list->elements() : std::vector<JsonPlace>();
}

void collect(const JsonPlace& module, int depth, std::map<std::string, Figures::Table>& result) {
  if (depth > kDeepestModule) return;
  Figures::Table& row = result[module.text_or("path", "")];
  for (const char* key :
       {"saved_activation_bytes", "output_bytes", "temporary_bytes", "backward_bytes", "parameter_bytes"}) {
    row[key] += module.amount_or(key, 0);
  }
  if (const auto flops = module.find("flops")) {
    for (const char* phase : {"forward", "backward"}) {
      row[std::string(phase) + "_flops"] += flops->amount_or(phase, 0);
    }
  }
  for (const JsonPlace& child : elements_of(module, "children")) collect(child, depth + 1, result);
}

}  // namespace

std::optional<double> Figures::at(std::string_view path) const {
  std::optional<JsonPlace> place = profile_;
  while (place && !path.empty()) {
    const std::string_view step = path.substr(0, path.find('/'));
    place = place->find(step);
    path.remove_prefix(std::min(step.size() + 1, path.size()));
  }
  return place ? std::optional(place->amount()) : std::nullopt;
}

std::map<std::string, Figures::Table> Figures::modules() const {
  std::map<std::string, Table> result;
  if (const auto root = profile_.find("modules")) collect(*root, 0, result);
  return result;
}

Figures::Table Figures::operators() const {
  Table result;
  if (const auto table = profile_.find("operators")) {
    for (const auto& [name, calls] : table->members()) result[name] = calls.amount();
  }
  return result;
}

Figures::Table Figures::at_peak() const {
  Table result;
  for (const JsonPlace& live : elements_of(profile_, "top_at_peak")) {
    const std::string module = live.text_or("module", "");
    const std::string maker = (module.empty() ? "" : module + " ") + live.text_or("op", "");
    result[live.text_or("kind", "") + " " + maker] += live.amount_or("bytes", 0);
  }
  return result;
}

}  // namespace shadowgraph::cli
