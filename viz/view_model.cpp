// Builds a view model from the drawn nodes: boxes with text, edges, marks, clusters.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/units.h"
#include "viz/drawn_graph.h"
#include "viz/node_colors.h"

namespace shadowgraph {
namespace {

constexpr size_t kMaxParameterLines = 3;

constexpr size_t kLongestLine = 40;  // characters of a label line

// Truncates a text to a number of bytes, ending in "..." if it is cut.
std::string shortened(std::string text, size_t longest = kLongestLine) {
  if (text.size() <= longest) return text;
  size_t end = longest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

// Returns a sharded placeholder's layout: "S(0) of [4096,4096]"; empty if it is whole.
std::string layout_label(const Graph& graph, NodeId placeholder) {
  const std::string_view layout = graph.note(placeholder, "layout");
  if (layout.empty()) return {};
  return fmt::format("{} of [{}]", layout, graph.note(placeholder, "whole_sizes"));
}

// Adds the parameters, buffers and constants that the node reads, directly or through views: "weight f32[64,3,7,7]",
// "weight, bias f32[64]", "weight f32[16,64], S(0) of [64,64]". Those with equal type and layout share a line.
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
  for (size_t i = 0; i < names_by_type.size() && i < kMaxParameterLines; ++i) {
    const auto& [type, names] = names_by_type[i];
    lines.push_back(shortened(names, std::max<size_t>(kLongestLine - std::min(type.size(), kLongestLine - 12), 12)) +
                    " " + type);
  }
  if (names_by_type.size() > kMaxParameterLines) {
    lines.push_back(fmt::format("+{} more", names_by_type.size() - kMaxParameterLines));
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

struct ViewEdges {
  std::vector<ViewEdge> edges;
  int64_t from_hidden = 0;  // tensors from hidden phases
};

// As ViewOptions::edge_note.
using EdgeNote = std::function<std::string(NodeId user, ValueId value)>;

constexpr size_t kMaxTensorsNamed = 12;  // in an edge's tooltip
constexpr size_t kLongestEdgeLabel = 28;

// Builds the edges of a picture, given the box of every node (kNone without one).
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

  // Adds edges for tensors that a node read only in the earlier graph.
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
                              .tooltip = type + ", only before",
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
    const uint32_t from = box_of_node_[from_node], to = box_of_node_[user];
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
    uint32_t result = 0, place = 0;
    graph_.for_each_output(producer, [&](ValueId output) {
      if (output == origin) result = place;
      ++place;
    });
    const std::string type = type_label(graph_, value);
    if (!seen_.emplace(entry->second, drawn_.stand_in[from_node], result, type).second) return;
    ViewEdge& edge = found_.edges[entry->second];
    if (ways_[entry->second]++ == 0) edge.label = shortened(type, kLongestEdgeLabel);
    if (ways_[entry->second] <= kMaxTensorsNamed) {
      edge.tooltip += (edge.tooltip.empty() ? "" : "\n") + type + " of " + graph_.target(producer).name();
    }
    edge.bytes = std::max(edge.bytes, graph_.logical_bytes(value));
    if (!note_) return;
    const std::string note = note_(drawn_.nodes[user], value);
    if (note.empty()) return;
    if (edge.note.empty()) edge.note = note;
    edge.tooltip += "\n" + note;
  }

  // Returns true if a result of the node shares its storage with the operand.
  bool is_alias(NodeId user, ValueId value) const {
    const StorageId storage = graph_.value(value).storage;
    bool same = false;
    if (storage.valid()) {
      graph_.for_each_output(user, [&](ValueId output) { same = same || graph_.value(output).storage == storage; });
    }
    return same;
  }

  // Returns true if two nodes are in different copies of one run of repeated modules.
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
  std::vector<size_t> ways_;                                              // number of tensors by edge
};

// Marks boxes with selected nodes and, with `merged`, boxes and edges that differ.
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
    const auto of = [&](ViewMark mark) { return count[static_cast<size_t>(mark)]; };
    const size_t added = of(ViewMark::kAdded), removed = of(ViewMark::kRemoved), changed = of(ViewMark::kChanged);
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

// Adds omitted neighbors of a part in gray: one box for the inputs and one for the outputs of a box, with an edge.
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
        fmt::format("omitted: {} operators that {}", count, makers ? "produce its inputs" : "read its results");
    const auto at = static_cast<uint32_t>(view.boxes.size());
    view.boxes.push_back(std::move(stub));
    view.edges.push_back({.from = makers ? at : box, .to = makers ? box : at});
  }
}

// Drops clusters without boxes and turns clusters of one box into a line of its label. Merges a container with its only
// module, and numbers the rest. `view.clusters` correspond to `modules`; `titled` are the boxes whose first line is a
// module's name.
void tidy_clusters(const std::vector<ModuleCluster>& modules, std::set<uint32_t>& titled, ViewModel& view) {
  const auto count = static_cast<uint32_t>(view.clusters.size());
  std::vector<uint32_t> boxes(count, 0);
  std::vector<uint32_t> children(count, 0);
  std::vector<uint32_t> only_box(count, DrawnGraph::kNone);
  std::vector<uint32_t> only_child(count, DrawnGraph::kNone);
  std::vector<uint32_t> first(count, DrawnGraph::kNone);
  std::vector<uint8_t> dropped(count, 0);
  for (uint32_t b = 0; b < view.boxes.size(); ++b) {
    const uint32_t c = view.boxes[b].cluster;
    ++boxes[c];
    only_box[c] = b;
    first[c] = std::min(first[c], b);
  }
  for (uint32_t c = count; c-- > 1;) {
    ViewCluster& cluster = view.clusters[c];
    const uint32_t parent = cluster.parent;
    if (boxes[c] + children[c] == 0) {
      dropped[c] = 1;
      continue;
    }
    first[parent] = std::min(first[parent], first[c]);
    if (boxes[c] == 1 && children[c] == 0 && !cluster.phase) {
      dropped[c] = 1;
      ViewBox& box = view.boxes[only_box[c]];
      box.cluster = parent;
      if (!titled.insert(only_box[c]).second) {
        box.lines.front() = shortened(cluster.title + "." + box.lines.front());
      } else {
        box.lines.insert(box.lines.begin(), cluster.title);
      }
      ++boxes[parent];
      only_box[parent] = only_box[c];
      continue;
    }
    if (boxes[c] == 0 && children[c] == 1 && modules[c].class_name.empty() && !cluster.phase) {
      dropped[c] = 1;
      ViewCluster& child = view.clusters[only_child[c]];
      child.title = cluster.title + "." + child.title;
      child.parent = parent;
      ++children[parent];
      only_child[parent] = only_child[c];
      continue;
    }
    ++children[parent];
    only_child[parent] = c;
  }
  std::vector<ViewCluster> kept;
  std::vector<uint32_t> place(count, 0);
  for (uint32_t c = 0; c < count; ++c) {
    if (dropped[c] != 0) continue;
    place[c] = static_cast<uint32_t>(kept.size());
    ViewCluster& cluster = view.clusters[c];
    cluster.parent = c == 0 ? ViewCluster::kNone : place[cluster.parent];
    cluster.id = c == 0 ? "" : fmt::format("c{}", place[c]);
    kept.push_back(std::move(cluster));
  }
  view.clusters = std::move(kept);
  for (ViewBox& box : view.boxes) {
    box.cluster = place[box.cluster];
    // A module called relu with a single operator relu shows the name once.
    if (box.lines.size() > 1 && box.lines[0] == box.lines[1]) box.lines.erase(box.lines.begin());
  }
}

constexpr uint32_t kNone = DrawnGraph::kNone;
constexpr size_t kFewBoxes = 8;  // with fewer boxes a picture is useless; a tall one is better

class ViewBuilder {
 public:
  ViewBuilder(const Graph& graph, const ViewOptions& options, const MergedGraph* merged)
      : graph_(graph),
        options_(options),
        merged_(merged),
        drawn_(DrawnGraph::of(graph, options, merged)),
        flops_(Flops::of(graph)),
        named_(named_nodes(options)),
        contents_(contents_of(graph_, drawn_, flops_)),
        hidden_(hidden_clusters(drawn_)) {}

  ViewModel build() {
    const std::vector<size_t> boxes = boxes_by_depth(drawn_, contents_, hidden_);
    int depth = first_depth(boxes);
    size_t rows = make(depth);
    const bool wished = options_.depth.has_value() || is_part() || options_.max_rows == 0;
    if (wished || rows <= options_.max_rows) return finished(boxes);
    const size_t unfolded = rows;
    // Closing modules is preferred to merging operators, as long as enough boxes are left.
    while (depth > 0 && rows > options_.max_rows && boxes[static_cast<size_t>(depth) - 1] >= kFewBoxes)
      rows = make(--depth);
    if (rows > options_.max_rows) {
      const size_t each = (rows + options_.max_rows - 1) / options_.max_rows;
      join_runs(each, false);
      unfold_hint_ = fmt::format(
          "up to {} consecutive boxes are merged: {} were stacked vertically; rows 0 (--rows 0) unfolds", each, rows);
      make_edges();
    } else {
      unfold_hint_ = fmt::format("folded from {} vertically stacked boxes to {}; --depth {} opens more, --rows 0 all",
                                 unfolded, rows, depth + 1);
    }
    return finished(boxes);
  }

 private:
  const std::vector<ModuleCluster>& clusters() const { return drawn_.clusters; }
  bool is_hidden(uint32_t cluster) const { return hidden_[cluster] != 0; }
  bool is_shown(uint32_t node) const { return drawn_.stand_in[node] == node; }

  bool is_part() const { return !options_.around.empty() || options_.path.has_value(); }

  int first_depth(const std::vector<size_t>& boxes) const {
    const auto deepest = static_cast<int>(boxes.size()) - 1;
    size_t limit = options_.max_boxes;
    if (!options_.depth) limit = limit > 0 ? std::min(options_.comfortable_boxes, limit) : options_.comfortable_boxes;
    int depth = options_.depth ? std::clamp(*options_.depth, 0, deepest) : deepest;
    while (depth > 0 && limit > 0 && boxes[static_cast<size_t>(depth)] > limit) --depth;
    return depth;
  }

  // Builds the picture with `depth` levels open, without clusters and notes. Returns the number of vertically stacked
  // boxes.
  size_t make(int depth) {
    view_ = ViewModel();
    view_.depth = depth;
    titled_.clear();
    crowded_ = 0;
    joined_ = 0;
    close_modules();
    collapse_crowds();
    make_boxes();
    make_clusters();
    if (options_.max_boxes > 0 && view_.boxes.size() > options_.max_boxes) {
      boxes_before_joining_ = view_.boxes.size();
      joined_ = (view_.boxes.size() + options_.max_boxes - 1) / options_.max_boxes;
      join_runs(joined_, true);
    }
    make_edges();
    return rows_of(view_);
  }

  ViewModel finished(const std::vector<size_t>& boxes) {
    const BoxNodes nodes = nodes_of_boxes(drawn_, box_of_node_, levels_);
    mark_boxes(nodes, named_, merged_, view_);
    if (options_.colors != nullptr) color_boxes(drawn_, nodes, *options_.colors, view_);
    add_omitted(graph_, drawn_, box_of_node_, view_);
    tidy_clusters(clusters(), titled_, view_);
    write_notes(static_cast<int>(boxes.size()) - 1);
    return std::move(view_);
  }

  void close_modules() {
    collapsed_.assign(clusters().size(), 0);
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      collapsed_[c] = !clusters()[c].phase && clusters()[c].depth > static_cast<uint32_t>(view_.depth) ? 1 : 0;
    }
    if (options_.depth) return;
    // Named nodes are always visible.
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      if (named_[drawn_.nodes[node]] == 0) continue;
      for (uint32_t c = drawn_.cluster_of[node]; c != 0 && collapsed_[c] != 0; c = clusters()[c].parent)
        collapsed_[c] = 0;
    }
  }

  void collapse_crowds() {
    std::vector<size_t> children(clusters().size(), 0);
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      if (is_shown(node)) ++children[drawn_.cluster_of[node]];
    }
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      if (!is_hidden(c) && contents_[c].visible > 0) ++children[clusters()[c].parent];
    }
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      if (collapsed_[c] != 0 || clusters()[c].phase || children[c] <= options_.max_children) continue;
      collapsed_[c] = 1;
      ++crowded_;
    }
    // Find the outermost collapsed cluster around each.
    box_of_cluster_.assign(clusters().size(), kNone);
    collapsed_into_.assign(clusters().size(), ModuleCluster::kNone);
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      const uint32_t above = collapsed_into_[clusters()[c].parent];
      collapsed_into_[c] = above != ModuleCluster::kNone ? above : collapsed_[c] != 0 ? c : ModuleCluster::kNone;
    }
  }

  std::string display_name(uint32_t c) const {
    const ModuleCluster& cluster = clusters()[c];
    std::string name = cluster.name;
    if (cluster.repeats > 1) return fmt::format("{} x{}", cluster.span, cluster.repeats);
    if (cluster.call > 0) name += fmt::format(" (call {})", cluster.call);
    return name;
  }

  std::string summary(uint32_t c) const {
    const ClusterContents& contents = contents_[c];
    std::string text = clusters()[c].class_name.empty() ? "" : clusters()[c].class_name + ": ";
    text += fmt::format("{} {}", contents.operators, contents.operators == 1 ? "operator" : "operators");
    if (contents.flops > 0) text += ", " + flops_text(contents.flops);
    if (clusters()[c].repeats > 1) text += " each";
    return text;
  }

  void make_boxes() {
    box_of_node_.assign(drawn_.nodes.size(), kNone);
    levels_.clear();
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      if (!is_shown(node)) continue;
      const uint32_t cluster = drawn_.cluster_of[node];
      const uint32_t module = collapsed_into_[cluster];
      if (module == ModuleCluster::kNone) {
        box_of_node_[node] = add_box(node, cluster);
      } else if (contents_[module].visible == 1) {
        // A single operator is clearer than a box around it.
        box_of_node_[node] = add_box(node, clusters()[module].parent);
        std::string name;
        for (uint32_t c = cluster; c != module; c = clusters()[c].parent) name = "." + clusters()[c].name + name;
        view_.boxes.back().lines.insert(view_.boxes.back().lines.begin(), shortened(display_name(module) + name));
        titled_.insert(box_of_node_[node]);
      } else {
        if (box_of_cluster_[module] == kNone) box_of_cluster_[module] = add_module_box(node, module);
        box_of_node_[node] = box_of_cluster_[module];
      }
    }
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node)
      box_of_node_[node] = box_of_node_[drawn_.stand_in[node]];
  }

  // Returns a box id from the node's position in its original graph.
  std::string box_id(char letter, uint32_t node) const {
    if (merged_ == nullptr) return fmt::format("{}{}", letter, drawn_.position[node]);
    const NodeId id = drawn_.nodes[node];
    const bool removed = merged_->marks[id] == ViewMark::kRemoved;
    return fmt::format("{}{}{}", removed ? "before_" : "", letter, merged_->number[id]);
  }

  uint32_t add_module_box(uint32_t first_node, uint32_t module) {
    ViewBox box;
    box.cluster = clusters()[module].parent;
    box.id = box_id('m', first_node);
    box.category = OperatorCategory::kModule;
    box.lines = {shortened(display_name(module)), shortened(summary(module))};
    if (contents_[module].bytes > 0) box.lines.push_back(human_bytes(contents_[module].bytes) + " allocated");
    std::string path = clusters()[module].name;
    for (uint32_t c = clusters()[module].parent; c != 0 && !clusters()[c].phase; c = clusters()[c].parent) {
      path = clusters()[c].name + "." + path;
    }
    box.tooltip = fmt::format("{}\n{}\n{} FLOPs, {} bytes allocated", path, summary(module),
                              exact_count(contents_[module].flops), exact_count(contents_[module].bytes));
    view_.boxes.push_back(std::move(box));
    levels_.push_back(clusters()[module].depth);
    return static_cast<uint32_t>(view_.boxes.size() - 1);
  }

  uint32_t add_box(uint32_t node, uint32_t cluster) {
    const NodeId id = drawn_.nodes[node];
    ViewBox box;
    box.cluster = cluster;
    box.id = box_id('n', node);
    box.category = category_of(graph_, id);
    const Target& target = graph_.target(id);
    if (target.kind() == TargetKind::kBuiltin) {
      const std::string name = placeholder_name(graph_, id);
      box.lines.push_back(shortened(name.empty() ? std::string(short_name(target.name())) : name));
      graph_.for_each_output(id, [&](ValueId value) { box.lines.push_back(shortened(type_label(graph_, value))); });
      if (const std::string layout = layout_label(graph_, id); !layout.empty()) box.lines.push_back(shortened(layout));
    } else {
      box.lines.push_back(std::string(short_name(target.name())));
      if (!options_.show_parameters) add_parameters(graph_, drawn_, id, box.lines);
    }
    box.tooltip = box_tooltip(graph_, flops_, id);
    view_.boxes.push_back(std::move(box));
    levels_.push_back(clusters()[drawn_.cluster_of[node]].depth);
    return static_cast<uint32_t>(view_.boxes.size() - 1);
  }

  // Creates the clusters of the picture: open modules that are not hidden, still with their indices in the module tree.
  void make_clusters() {
    view_.clusters.resize(clusters().size());
    for (uint32_t c = 0; c < clusters().size(); ++c) {
      ViewCluster& cluster = view_.clusters[c];
      cluster.parent = clusters()[c].parent;
      cluster.phase = clusters()[c].phase;
      cluster.title = c == 0 ? "" : shortened(display_name(c));
      cluster.subtitle = c == 0 ? "" : shortened(summary(c), 80);
    }
  }

  // Merges up to `each` consecutive boxes, if no modules can be closed.
  void join_runs(size_t each, bool placeholders) {
    const size_t count = view_.boxes.size();
    std::vector<ViewBox> joined;
    std::vector<uint32_t> levels;
    std::vector<uint32_t> joined_into(count);
    size_t in_last = 0;
    for (size_t b = 0; b < count; ++b) {
      const ViewBox& box = view_.boxes[b];
      const bool same_place = !joined.empty() && joined.back().cluster == box.cluster &&
                              (placeholders || (box.category != OperatorCategory::kPlaceholder &&
                                                joined.back().category != OperatorCategory::kPlaceholder));
      if (!same_place || in_last == each) {
        joined.push_back(std::move(view_.boxes[b]));
        levels.push_back(levels_[b]);
        in_last = 1;
      } else {
        ViewBox& last = joined.back();
        if (++in_last == 2) {
          last.lines = {last.lines.front(), "", ""};
          last.category = OperatorCategory::kModule;
          last.tooltip.clear();
          levels.back() = clusters()[last.cluster].depth;
        }
        last.lines[1] = "... " + box.lines.front();
        last.lines[2] = fmt::format("{} boxes", in_last);
      }
      joined_into[b] = static_cast<uint32_t>(joined.size() - 1);
    }
    view_.boxes = std::move(joined);
    levels_ = std::move(levels);
    titled_.clear();
    for (uint32_t& box : box_of_node_) box = box == kNone ? kNone : joined_into[box];
  }

  void make_edges() {
    EdgeBuilder builder(graph_, drawn_, box_of_node_, options_.edge_note);
    builder.add_uses();
    if (merged_ != nullptr) builder.add_lost(*merged_);
    ViewEdges found = builder.take();
    view_.edges = std::move(found.edges);
    from_hidden_ = found.from_hidden;
  }

  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    view_.notes.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void write_notes(int deepest) {
    if (merged_ != nullptr && merged_->added + merged_->removed + merged_->changed > 0) {
      note("{} nodes added, {} removed, {} changed", merged_->added, merged_->removed, merged_->changed);
    } else if (merged_ != nullptr) {
      note("the graphs are identical");
    }
    if (drawn_.left_out > 0) note("part of the graph: {} operators are omitted", drawn_.left_out);
    if (options_.depth && view_.depth < std::min(*options_.depth, deepest)) {
      note("depth {} instead of {}: more than {} boxes (--boxes allows more)", view_.depth,
           std::min(*options_.depth, deepest), options_.max_boxes);
    } else if (!options_.depth && view_.depth < deepest) {
      note("modules below level {} are collapsed", view_.depth);
    }
    if (!unfold_hint_.empty()) view_.notes.push_back(unfold_hint_);
    if (crowded_ > 0) note("{} modules with more than {} boxes are collapsed", crowded_, options_.max_children);
    if (joined_ > 0) {
      note("up to {} consecutive boxes are merged: {} would exceed {} (--boxes allows more)", joined_,
           boxes_before_joining_, options_.max_boxes);
    }
    if (from_hidden_ > 0) note("{} tensors from hidden phases have no edge", from_hidden_);
    if (drawn_.hidden_nodes > 0) {
      note("{} operators in hidden phases: {}", drawn_.hidden_nodes, fmt::join(drawn_.hidden_phases, ", "));
    }
    if (drawn_.plumbing > 0) note("{} views are not drawn", drawn_.plumbing);
    int64_t folded = 0;
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) folded += is_shown(node) ? 0 : 1;
    if (folded > 0) note("{} operators in repeated layers are folded", folded);
  }

  const Graph& graph_;
  const ViewOptions& options_;
  const MergedGraph* merged_;
  const DrawnGraph drawn_;
  const Flops flops_;
  const IdMap<NodeId, uint8_t> named_;
  const std::vector<ClusterContents> contents_;
  const std::vector<uint8_t> hidden_;  // clusters in a folded copy
  ViewModel view_;
  std::vector<uint8_t> collapsed_;        // clusters drawn as one box
  std::vector<uint32_t> collapsed_into_;  // the outermost such cluster around each
  std::vector<uint32_t> box_of_cluster_, box_of_node_;
  std::vector<uint32_t> levels_;  // of boxes: nodes_of_boxes
  std::set<uint32_t> titled_;     // boxes whose first line is a module's name
  std::string unfold_hint_;
  int64_t crowded_ = 0;      // modules closed because of too many boxes
  int64_t from_hidden_ = 0;  // tensors from hidden phases
  size_t joined_ = 0;        // boxes merged, because there were too many
  size_t boxes_before_joining_ = 0;
};

}  // namespace

ViewModel ViewModel::of(const Graph& graph, const ViewOptions& options) {
  std::optional<MergedGraph> merged;
  if (options.before != nullptr) merged = MergedGraph::of(*options.before, graph);
  ViewModel view = ViewBuilder(merged ? merged->graph : graph, options, merged ? &*merged : nullptr).build();
  view.title = graph.metadata.model.value_or("graph");
  return view;
}

}  // namespace shadowgraph
