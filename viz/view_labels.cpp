#include "viz/view_labels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
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

namespace {

constexpr size_t kMostTensorsNamed = 12;  // in the tooltip of an edge
constexpr size_t kLongestEdgeLabel = 28;

class EdgeBuilder {
 public:
  EdgeBuilder(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
              const EdgeNote& note)
      : graph_(graph), drawn_(drawn), box_of_node_(box_of_node), note_(note) {}

  void add_uses() {
    for (uint32_t user = 0; user < drawn_.nodes.size(); ++user) {
      const NodeId id = drawn_.nodes[user];
      const OperatorFacts& facts = graph_.facts(graph_.node(id).target);
      const auto arguments = graph_.arguments(id);
      for (size_t place = 0; place < arguments.size(); ++place) {
        const bool writes = std::find(facts.written.begin(), facts.written.end(), place) != facts.written.end();
        graph_.for_each_value(arguments.subspan(place, 1), [&](ValueId value) { add_use(user, value, writes); });
      }
    }
    for (size_t e = 0; e < ways_.size(); ++e) {
      if (ways_[e] > 1) found_.edges[e].label += fmt::format(" +{}", ways_[e] - 1);
    }
  }

  // Adds edges for what a node read before and reads no more.
  void add_lost(const MergedGraph& merged) {
    std::set<std::pair<uint32_t, uint32_t>> seen;
    for (const MergedGraph::LostUse& use : merged.lost_uses) {
      const uint32_t from = box_of(graph_.value(drawn_.origin_of(use.value)).producer);
      const uint32_t to = box_of(use.user);
      if (from == DrawnGraph::kNone || to == DrawnGraph::kNone || from == to || !seen.emplace(from, to).second)
        continue;
      const std::string type = type_label(graph_, use.value);
      found_.edges.push_back({.from = from,
                              .to = to,
                              .label = shortened(type, kLongestEdgeLabel),
                              .tooltip = type + ", read before",
                              .bytes = graph_.logical_bytes(use.value),
                              .removed = true});
    }
  }
  ViewEdges take() { return std::move(found_); }

 private:
  void add_use(uint32_t user, ValueId value, bool writes) {
    const ValueId origin = drawn_.origin_of(value);
    const NodeId producer = graph_.value(origin).producer;
    if (!producer.valid() || graph_.is_erased(producer)) return;
    const uint32_t from_node = std::as_const(drawn_.index)[producer];
    if (from_node == DrawnGraph::kNone) {
      if (graph_.target(producer).kind() != TargetKind::kBuiltin && drawn_.left_out == 0) ++found_.from_hidden;
      return;
    }
    const uint32_t from = box_of_node_[from_node];
    const uint32_t to = box_of_node_[user];
    const bool next_copy = in_different_copies(from_node, user);
    if (from == DrawnGraph::kNone || to == DrawnGraph::kNone || (from == to && !next_copy)) return;
    const ViewEdgeKind kind = writes                                ? ViewEdgeKind::kMutation
                              : is_alias(drawn_.nodes[user], value) ? ViewEdgeKind::kAlias
                                                                    : ViewEdgeKind::kData;
    const auto [entry, added] =
        places_.try_emplace({from, to, next_copy, kind}, static_cast<uint32_t>(found_.edges.size()));
    if (added) {
      found_.edges.push_back({.from = from, .to = to, .kind = kind, .to_next_copy = next_copy});
      ways_.push_back(0);
    }
    uint32_t result = 0;
    uint32_t place = 0;
    graph_.for_each_output(producer, [&](ValueId output) {
      if (output == origin) result = place;
      ++place;
    });
    const std::string type = type_label(graph_, value);
    if (!seen_.emplace(entry->second, drawn_.stand_in[from_node], result, type).second) return;
    ViewEdge& edge = found_.edges[entry->second];
    if (ways_[entry->second]++ == 0) edge.label = shortened(type, kLongestEdgeLabel);
    if (ways_[entry->second] <= kMostTensorsNamed) {
      edge.tooltip += (edge.tooltip.empty() ? "" : "\n") + type + " of " + graph_.target(producer).name();
    }
    edge.bytes = std::max(edge.bytes, graph_.logical_bytes(value));
    if (!note_) return;
    const std::string note = note_(drawn_.nodes[user], value);
    if (note.empty()) return;
    if (edge.note.empty()) edge.note = note;
    edge.tooltip += "\n" + note;
  }

  // Says whether a result of the node is in the same storage as what it reads.
  bool is_alias(NodeId user, ValueId value) const {
    const StorageId storage = graph_.value(value).storage;
    bool same = false;
    if (storage.valid()) {
      graph_.for_each_output(user, [&](ValueId output) { same = same || graph_.value(output).storage == storage; });
    }
    return same;
  }

  // Says whether two nodes lie in different copies of one run of equal modules.
  bool in_different_copies(uint32_t a, uint32_t b) const {
    const auto& clusters = drawn_.clusters;
    for (uint32_t c = drawn_.cluster_of[a]; c != 0; c = clusters[c].parent) {
      if (clusters[c].run == ModuleCluster::kNone) continue;
      for (uint32_t d = drawn_.cluster_of[b]; d != 0; d = clusters[d].parent) {
        if (clusters[d].run == clusters[c].run && c != d) return true;
      }
    }
    return false;
  }

  uint32_t box_of(NodeId node) const {
    if (!node.valid() || graph_.is_erased(node)) return DrawnGraph::kNone;
    const uint32_t at = std::as_const(drawn_.index)[node];
    return at == DrawnGraph::kNone ? DrawnGraph::kNone : box_of_node_[at];
  }

  const Graph& graph_;
  const DrawnGraph& drawn_;
  const std::vector<uint32_t>& box_of_node_;
  const EdgeNote& note_;
  ViewEdges found_;
  std::map<std::tuple<uint32_t, uint32_t, bool, ViewEdgeKind>, uint32_t> places_;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, std::string>> seen_;  // edge, producer, result, type
  std::vector<size_t> ways_;                                              // tensors that take each edge
};

}  // namespace

ViewEdges edges_of(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                   const MergedGraph* merged, const EdgeNote& note) {
  EdgeBuilder builder(graph, drawn, box_of_node, note);
  builder.add_uses();
  if (merged != nullptr) builder.add_lost(*merged);
  return builder.take();
}

void mark_boxes(const BoxNodes& nodes, const IdMap<NodeId, uint8_t>& named, const MergedGraph* merged,
                ViewModel& view) {
  for (size_t b = 0; b < nodes.size(); ++b) {
    if (nodes[b].empty()) continue;
    ViewBox& box = view.boxes[b];
    std::array<size_t, 5> count{};
    for (const NodeId node : nodes[b].front()) {
      if (named[node] != 0) box.mark = ViewMark::kNamed;
      if (merged != nullptr) ++count[static_cast<size_t>(merged->marks[node])];
    }
    const size_t added = count[static_cast<size_t>(ViewMark::kAdded)];
    const size_t removed = count[static_cast<size_t>(ViewMark::kRemoved)];
    const size_t changed = count[static_cast<size_t>(ViewMark::kChanged)];
    const size_t all = nodes[b].front().size();
    if (added + removed + changed == 0) continue;
    box.mark = added == all ? ViewMark::kAdded : removed == all ? ViewMark::kRemoved : ViewMark::kChanged;
    if (all == 1) continue;
    std::vector<std::string> parts;
    if (added > 0) parts.push_back(fmt::format("{} added", added));
    if (removed > 0) parts.push_back(fmt::format("{} removed", removed));
    if (changed > 0) parts.push_back(fmt::format("{} changed", changed));
    box.lines.push_back(fmt::format("{}", fmt::join(parts, ", ")));
  }
  for (ViewEdge& edge : view.edges) {
    edge.removed = edge.removed || view.boxes[edge.from].mark == ViewMark::kRemoved ||
                   view.boxes[edge.to].mark == ViewMark::kRemoved;
  }
}

void add_omitted(const Graph& graph, const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                 ViewModel& view) {
  std::map<std::pair<uint32_t, bool>, uint32_t> boxes;
  std::vector<std::pair<uint32_t, NodeId>> counts;
  for (const DrawnGraph::Omitted& omitted : drawn.omitted) {
    const uint32_t box = box_of_node[omitted.node];
    if (drawn.stand_in[omitted.node] != omitted.node || box == DrawnGraph::kNone) continue;
    const auto [entry, added] = boxes.try_emplace({box, omitted.makers}, static_cast<uint32_t>(counts.size()));
    if (added) counts.emplace_back(0, omitted.first);
    counts[entry->second].first += omitted.count;
  }
  for (const auto& [key, index] : boxes) {
    const auto& [box, makers] = key;
    const auto& [count, first] = counts[index];
    ViewBox stub;
    stub.id = fmt::format("{}_{}", view.boxes[box].id, makers ? "before" : "after");
    stub.category = OperatorCategory::kView;
    stub.omitted = true;
    const std::string name = placeholder_name(graph, first);
    stub.lines = {count > 1 ? fmt::format("{} more", count)
                            : shortened(name.empty() ? std::string(short_name(graph.target(first).name())) : name)};
    stub.tooltip =
        fmt::format("left out: {} operators that {}", count, makers ? "make what it reads" : "read what it makes");
    const auto at = static_cast<uint32_t>(view.boxes.size());
    view.boxes.push_back(std::move(stub));
    view.edges.push_back({.from = makers ? at : box, .to = makers ? box : at});
  }
}

}  // namespace shadowgraph
