#include "viz/node_colors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ir/analysis/module_tree.h"
#include "ir/text/words.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

// Titles in the order of ColorBy.
constexpr std::string_view kTitles[] = {"kind of operator",
                                        "matmul FLOPs",
                                        "bytes read and written",
                                        "bytes allocated",
                                        "bytes saved for backward",
                                        "estimated time",
                                        "device",
                                        "phase",
                                        "module class",
                                        "given values"};

// cividis, from Nunez, Anderton, Renslow: Optimizing colormaps with consideration for color vision deficiency (2018).
constexpr std::string_view kCividis[] = {"#00224e", "#123570", "#3b496c", "#575d6d", "#707173",
                                         "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"};
constexpr size_t kFirstUnderBlackText = 5;
constexpr int kLegendSteps = 5;
constexpr std::string_view kNoAmount = "#e6e6e6";

// Okabe and Ito's hues, lightened so that black text is readable on them; then grayer variants.
constexpr std::string_view kKindFills[] = {"#8ec7ea", "#f6c667", "#7fd1b9", "#e3b5cf", "#f4ee9c", "#eda07a", "#9fb8e0",
                                           "#cfcfcf", "#b7dbe8", "#e8d5a9", "#b5d9cd", "#dcc9d6", "#e6e3c3", "#dfbfae"};
constexpr size_t kMaxKinds = std::size(kKindFills) - 1;  // the last one is for all other kinds

std::string amount_text(double amount, NodeColors::Unit unit) {
  switch (unit) {
    case NodeColors::Unit::kFlops:
      return flops_text(std::llround(amount));
    case NodeColors::Unit::kBytes:
      return human_bytes(std::llround(amount));
    case NodeColors::Unit::kSeconds:
      return human_seconds(amount);
    case NodeColors::Unit::kNone:
      return amount >= 1000 && amount < 1e18 ? human_count(std::llround(amount)) : fmt::format("{:.4g}", amount);
  }
  return {};
}

// Returns the class of the innermost enclosing module that has one.
std::string module_class(const Graph& graph, NodeId node) {
  RegionId at = charged_region(graph, node);
  for (uint32_t steps = 0; at.valid() && steps <= graph.region_count(); ++steps) {
    const Region& region = graph.region(at);
    const auto name = graph.text_or_empty(region.class_name);
    if (region.kind == RegionKind::kModule && !name.empty()) return std::string(name);
    at = region.parent;
  }
  return "outside all modules";
}

std::string first_device(const Graph& graph, NodeId node) {
  std::string name;
  const auto take = [&](ValueId value) {
    if (name.empty() && graph.value(value).kind == ValueKind::kTensor) name = device_text(graph.value(value).device());
  };
  graph.for_each_output(node, take);
  graph.for_each_input(node, take);  // nodes without results
  return name.empty() ? "no device" : name;
}

// Statistics over the copies of a repeated layer.
struct Copies {
  double least = 0, mean = 0, most = 0;
  size_t count = 0;

  static Copies of(const std::vector<double>& amounts) {
    if (amounts.empty()) return {};
    const auto [least, most] = std::ranges::minmax(amounts);
    Copies copies{.least = least, .most = most, .count = amounts.size()};
    for (const double amount : amounts) copies.mean += amount / static_cast<double>(amounts.size());
    return copies;
  }
  std::string text(NodeColors::Unit unit) const {
    if (count <= 1) return amount_text(mean, unit);
    return fmt::format("x{}: min {}, mean {}, max {}", count, amount_text(least, unit), amount_text(mean, unit),
                       amount_text(most, unit));
  }
};

// Adds to the titles of open repeated layers the statistics that folded ones have in their boxes.
void add_amounts_of_clusters(const DrawnGraph& drawn, const NodeColors& colors, ViewModel& view) {
  std::vector<double> sums(drawn.clusters.size(), 0);
  for (uint32_t node = 0; node < drawn.nodes.size(); ++node) {
    sums[drawn.cluster_of[node]] += colors.amounts[drawn.nodes[node]];
  }
  for (auto c = static_cast<uint32_t>(sums.size()); c-- > 1;) sums[drawn.clusters[c].parent] += sums[c];
  for (uint32_t c = 1; c < sums.size() && c < view.clusters.size(); ++c) {
    if (drawn.clusters[c].repeats <= 1) continue;
    std::vector<double> amounts;
    for (const uint32_t sibling : drawn.clusters[drawn.clusters[c].parent].children) {
      if (drawn.clusters[sibling].run == c) amounts.push_back(sums[sibling]);
    }
    const Copies copies = Copies::of(amounts);
    if (copies.most > 0) view.clusters[c].subtitle += ", " + copies.text(colors.unit);
  }
}

void color_by_amount(ViewModel& view, const BoxNodes& nodes_of, const NodeColors& colors) {
  std::vector<double> amounts(view.boxes.size(), 0);
  std::vector<Copies> copies(view.boxes.size());
  double low = INFINITY, high = 0;
  for (size_t b = 0; b < view.boxes.size() && b < nodes_of.size(); ++b) {
    std::vector<double> of_copies(nodes_of[b].size(), 0);
    for (size_t copy = 0; copy < of_copies.size(); ++copy) {
      for (const NodeId node : nodes_of[b][copy]) of_copies[copy] += colors.amounts[node];
    }
    copies[b] = Copies::of(of_copies);
    amounts[b] = copies[b].mean;
    if (amounts[b] <= 0) continue;
    low = std::min(low, amounts[b]);
    high = std::max(high, amounts[b]);
  }
  const double span = high > low ? std::log(high / low) : 0;
  const auto entry = [&](double share) {
    const auto step = static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * (std::size(kCividis) - 1)));
    return LegendEntry{"", std::string(kCividis[step]), step < kFirstUnderBlackText};
  };
  bool none = false;
  for (size_t b = 0; b < view.boxes.size(); ++b) {
    ViewBox& box = view.boxes[b];
    if (box.omitted) continue;
    const bool has = amounts[b] > 0;
    none = none || !has;
    const LegendEntry look =
        has ? entry(span > 0 ? std::log(amounts[b] / low) / span : 1) : LegendEntry{"", std::string(kNoAmount), false};
    box.fill = look.fill;
    box.light_text = look.light_text;
    if (!has) continue;
    box.tooltip += fmt::format("\n{}: {}", colors.title, copies[b].text(colors.unit));
    if (box.category == OperatorCategory::kModule) box.lines.push_back(copies[b].text(colors.unit));
  }
  const int steps = high == 0 ? 0 : span > 0 ? kLegendSteps : 1;
  for (int i = 0; i < steps; ++i) {
    const double share = steps == 1 ? 1 : 1 - static_cast<double>(i) / (steps - 1);
    LegendEntry step = entry(share);
    step.label = amount_text(steps == 1 ? high : low * std::exp(share * span), colors.unit);
    view.legend.push_back(std::move(step));
  }
  if (none) view.legend.push_back({"none", std::string(kNoAmount)});
}

void color_by_kind(ViewModel& view, const BoxNodes& nodes_of, const NodeColors& colors) {
  std::vector<bool> used(colors.kind_entries.size(), false);
  bool several = false, none = false;
  for (size_t b = 0; b < view.boxes.size() && b < nodes_of.size(); ++b) {
    ViewBox& box = view.boxes[b];
    if (box.omitted) continue;
    uint32_t kind = NodeColors::kNoKind;
    bool mixed = false;
    std::vector<std::string> names;
    for (const auto& copy : nodes_of[b]) {
      for (const NodeId node : copy) {
        const uint32_t own = colors.kinds[node];
        if (own >= colors.kind_entries.size()) continue;
        mixed = mixed || (kind != NodeColors::kNoKind && kind != own);
        kind = own;
        const std::string& name = colors.kind_entries[own].label;
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
    several = several || mixed;
    none = none || kind == NodeColors::kNoKind;
    box.fill = kNoAmount;
    if (!names.empty()) box.tooltip += fmt::format("\n{}: {}", colors.title, fmt::join(names, ", "));
    if (mixed || kind == NodeColors::kNoKind) continue;
    used[kind] = true;
    box.fill = colors.kind_entries[kind].fill;
    box.light_text = colors.kind_entries[kind].light_text;
  }
  for (size_t k = 0; k < used.size(); ++k) {
    if (used[k]) view.legend.push_back(colors.kind_entries[k]);
  }
  if (several || none) {
    view.legend.push_back({several && none ? "several or none" : several ? "several" : "none", std::string(kNoAmount)});
  }
}

}  // namespace

std::string flops_text(int64_t flops) {
  const std::string count = human_count(flops);
  return count + (std::isdigit(static_cast<unsigned char>(count.back())) != 0 ? " FLOPs" : "FLOPs");
}

uint32_t KindNumbers::add(const std::string& name) {
  auto [entry, added] = numbers_.try_emplace(name, static_cast<uint32_t>(colors_.kind_entries.size()));
  if (added && colors_.kind_entries.size() < kMaxKinds) {
    colors_.kind_entries.push_back({name, std::string(kKindFills[colors_.kind_entries.size()])});
  } else if (added) {
    if (colors_.kind_entries.size() == kMaxKinds) {
      colors_.kind_entries.push_back({"others", std::string(kKindFills[kMaxKinds])});
    }
    entry->second = kMaxKinds;
  }
  return entry->second;
}

ColorBy color_by(std::string_view name) {
  const auto by = find_named<ColorBy>(name);
  if (by && *by != ColorBy::kGiven) return *by;
  std::vector<std::string> names = enum_words<ColorBy>();
  names.pop_back();
  throw Error(fmt::format("unknown coloring '{}'; choose one of {}, or give a file of values (.json, .csv)", name,
                          fmt::join(names, ", ")));
}

NodeColors NodeColors::of(const Profile& profile, ColorBy by) {
  NodeColors colors;
  colors.by = by;
  colors.title = kTitles[static_cast<size_t>(by)];
  const Graph& graph = profile.graph();
  const ProgramCosts& costs = ProgramCosts::of(profile);
  KindNumbers kinds(colors);
  const StepTime* time = profile.time();
  if (by == ColorBy::kTime) {
    if (time == nullptr) {
      throw Error(
          "coloring by time needs a device spec: set --spec or ProfileOptions::spec; 'shadowgraph list devices' lists "
          "them");
    }
    colors.title += " on " + time->spec();
    colors.unit = Unit::kSeconds;
  } else if (by != ColorBy::kFlops) {
    colors.unit = Unit::kBytes;
  }
  for (const NodeId node : costs.nodes) {
    switch (by) {
      case ColorBy::kOperator:
        kinds.set(node, std::string(style_of(category_of(graph, node)).name));
        break;
      case ColorBy::kFlops:
        colors.amounts[node] = static_cast<double>(profile.of(node).matmul);
        break;
      case ColorBy::kBytes:
        colors.amounts[node] = static_cast<double>(costs.traffic().of(node).total());
        break;
      case ColorBy::kAllocated:
        colors.amounts[node] = static_cast<double>(costs.node_bytes().allocated[node]);
        break;
      case ColorBy::kMemory:
        colors.amounts[node] = static_cast<double>(costs.node_bytes().saved[node]);
        break;
      case ColorBy::kTime:
        colors.amounts[node] = time->of(node).seconds;
        break;
      case ColorBy::kDevice:
        kinds.set(node, first_device(graph, node));
        break;
      case ColorBy::kPhase:
        kinds.set(node, graph.phase_name(graph.node(node).phase));
        break;
      case ColorBy::kModule:
        kinds.set(node, module_class(graph, node));
        break;
      case ColorBy::kGiven:
        throw Error("given values come from a file, not from a profile; use node_colors_of_file");
    }
  }
  return colors;
}

NodeColors colors_by_kind(std::string title, const std::vector<std::pair<NodeId, std::string>>& kind_of) {
  std::map<std::string, size_t> counts;
  for (const auto& [node, kind] : kind_of) ++counts[kind];
  std::vector<std::pair<std::string, size_t>> kinds(counts.begin(), counts.end());
  std::ranges::stable_sort(kinds, std::ranges::greater(), &std::pair<std::string, size_t>::second);
  NodeColors colors;
  colors.by = ColorBy::kGiven;
  colors.title = std::move(title);
  KindNumbers numbers(colors);
  for (const auto& [kind, count] : kinds) numbers.add(kind);
  for (const auto& [node, kind] : kind_of) numbers.set(node, kind);
  return colors;
}

void color_boxes(const DrawnGraph& drawn, const BoxNodes& nodes_of, const NodeColors& colors, ViewModel& view) {
  // Boxes already have the colors of their operator kinds.
  if (colors.by == ColorBy::kOperator) return;
  view.legend_title = colors.title;
  if (!colors.kind_entries.empty()) return color_by_kind(view, nodes_of, colors);
  view.legend_title += ", logarithmic";
  color_by_amount(view, nodes_of, colors);
  add_amounts_of_clusters(drawn, colors, view);
}

}  // namespace shadowgraph
