#include "viz/box_labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

constexpr size_t kMostParameterLines = 3;

}  // namespace

std::string shortened(std::string text, size_t longest) {
  if (text.size() <= longest) return text;
  size_t end = longest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

std::string layout_label(const Graph& graph, NodeId placeholder) {
  const std::string_view layout = graph.note(placeholder, "layout");
  if (layout.empty()) return {};
  return fmt::format("{} of [{}]", layout, graph.note(placeholder, "whole_sizes"));
}

void add_parameters(const Graph& graph, const DrawnGraph& drawn, NodeId id, std::vector<std::string>& lines) {
  const std::string module = module_path(graph, id) + ".";
  std::vector<ValueId> seen;
  std::vector<std::pair<std::string, std::string>> names_by_type;
  graph.for_each_input(id, [&](ValueId value) {
    const ValueId origin = drawn.origin_of(value);
    const NodeId producer = graph.value(origin).producer;
    if (!producer.valid() || graph.is_erased(producer) || !is_placeholder(graph.node(producer).target)) return;
    if (graph.node(producer).target == target_of(Builtin::kInput)) return;
    if (std::find(seen.begin(), seen.end(), origin) != seen.end()) return;
    seen.push_back(origin);
    std::string name = placeholder_name(graph, producer);
    if (name.empty()) name = "constant";
    if (module.size() > 1 && name.starts_with(module)) name = name.substr(module.size());
    std::string type = type_label(graph, origin);
    if (const std::string layout = layout_label(graph, producer); !layout.empty()) type += ", " + layout;
    const auto same =
        std::find_if(names_by_type.begin(), names_by_type.end(), [&](const auto& line) { return line.first == type; });
    if (same == names_by_type.end()) {
      names_by_type.emplace_back(type, name);
    } else {
      same->second += ", " + name;
    }
  });
  for (size_t i = 0; i < names_by_type.size() && i < kMostParameterLines; ++i) {
    const auto& [type, names] = names_by_type[i];
    lines.push_back(shortened(names, std::max<size_t>(kLongestLine - std::min(type.size(), kLongestLine - 12), 12)) +
                    " " + type);
  }
  if (names_by_type.size() > kMostParameterLines) {
    lines.push_back(fmt::format("+{} more", names_by_type.size() - kMostParameterLines));
  }
}

std::string box_tooltip(const Graph& graph, const Flops& flops_of, NodeId id) {
  const Target& target = graph.target(id);
  std::string text = target.name();
  const auto& formal = target.signature().arguments;
  const auto actual = graph.arguments(id);
  for (size_t i = 0; i < formal.size() && i < actual.size(); ++i) {
    std::string value;
    if (actual[i].kind == ArgumentKind::kInt) value = std::to_string(actual[i].i);
    if (actual[i].kind == ArgumentKind::kFloat) value = fmt::format("{}", actual[i].d);
    if (actual[i].kind == ArgumentKind::kBool) value = actual[i].b ? "true" : "false";
    if (actual[i].kind == ArgumentKind::kIntList) value = fmt::format("[{}]", fmt::join(graph.ints(actual[i]), ", "));
    if (!value.empty()) text += fmt::format("\n{} = {}", formal[i].name, value);
  }
  graph.for_each_output(id, [&](ValueId value) {
    text += "\n-> " + type_label(graph, value);
    if (graph.value(value).kind != ValueKind::kTensor) return;
    text += fmt::format(" stride [{}], {} bytes", fmt::join(graph.strides(value), ","),
                        exact_count(graph.logical_bytes(value)));
  });
  const NodeFlops& flops = flops_of.of(id);
  if (flops.matmul > 0) text += fmt::format("\n{} FLOPs", exact_count(flops.matmul));
  if (flops.elementwise > 0) text += fmt::format("\n{} elementwise", exact_count(flops.elementwise));
  if (const std::string layout = layout_label(graph, id); !layout.empty()) text += "\n" + layout;
  if (const std::string module = module_path(graph, id); !module.empty()) text += "\nin " + module;
  if (const auto source = graph.text_or_empty(graph.node(id).source); !source.empty()) {
    text += fmt::format("\nat {}", source);
  }
  return text;
}

}  // namespace shadowgraph
