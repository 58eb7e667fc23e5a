#include "parallel/plan/unit_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/analysis/module_tree.h"
#include "parallel/stages/forward_line.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::pair<size_t, size_t> number_in_path(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    size_t digits = end;
    while (digits > begin && is_digit(path[digits - 1])) --digits;
    if (digits < end && (digits == begin || path[digits - 1] == '_')) return {digits, end - digits};
    begin = end + 1;
  }
  return {0, 0};
}

UnitNames UnitNames::of(const Graph& step) {
  const ProgramCosts costs(step);
  const ForwardLine line(costs);
  UnitNames names{.begins = {""}};
  std::string now;
  std::set<std::string> entered;  // modules that have computed, and those around them
  for (int32_t i = 0; i < line.length(); ++i) {
    const std::string path = module_path(step, line.node(i));
    const auto [at, length] = number_in_path(path);
    const bool layer = length > 0;
    // What is in no layer begins a unit only behind one.
    const std::string unit = layer ? path.substr(0, at + length) : path;
    const bool was_layer = number_in_path(now).second > 0;
    const bool begins = layer ? unit != now : was_layer && !unit.empty();
    if (begins && i == 0) {
      names.begins.front() = unit;  // nothing comes before the first layer
    } else if (begins && !entered.contains(unit)) {
      names.begins.push_back(unit);
    }
    if (layer || begins) now = unit;
    for (size_t end = path.find('.'); end != std::string::npos; end = path.find('.', end + 1)) {
      entered.insert(path.substr(0, end));
    }
    entered.insert(path);
  }
  return names;
}

void check_layers(const std::vector<std::string>& units, int64_t wanted, const std::string& model) {
  std::map<std::string, int64_t> lists;
  for (const std::string& unit : units) {
    const auto [at, length] = number_in_path(unit);
    if (length > 0) ++lists[unit.substr(0, at)];
  }
  for (const auto& [list, layers] : lists) {
    if (layers <= wanted) continue;
    throw Error(
        fmt::format("{} was to be made with {} layers and has {} in '{}': its source cannot make fewer; say so, "
                    "and it is captured whole (StepSource::layers 0, layers=(0, ...) in Python)",
                    model, wanted, layers, list));
  }
}

}  // namespace shadowgraph
