#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/operators/operator_name.h"
#include "profiler/module_tree.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/profile.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kNone = DrawnGraph::kNone;
constexpr size_t kLongestLine = 40;  // characters of a label's line
constexpr size_t kMostParameterLines = 3;
constexpr size_t kMostTooltipLines = 12;

std::string shortened(std::string text, size_t longest = kLongestLine) {
  if (text.size() <= longest) return text;
  size_t end = longest - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a UTF-8 character
  return text.substr(0, end) + "...";
}

// What the operators of a cluster and of all below it come to.
struct Contents {
  int64_t operators = 0;
  int64_t flops = 0;
  int64_t bytes = 0;       // allocated
  uint32_t visible = 0;    // drawn nodes that no fold hides
  uint32_t first = kNone;  // the first of those
};

class ViewBuilder {
 public:
  ViewBuilder(const Graph& graph, const ViewOptions& options)
      : graph_(graph), options_(options), drawn_(DrawnGraph::of(graph, options)), flops_(Flops::of(graph)) {}

  ViewModel build() {
    view_.title = graph_.metadata.model.value_or("graph");
    sum_contents();
    choose_depth();
    collapse_crowds();
    make_boxes();
    make_clusters();
    limit_boxes();
    make_edges();
    tidy_clusters();
    write_notes();
    return std::move(view_);
  }

 private:
  const std::vector<ModuleCluster>& clusters() const { return drawn_.clusters; }
  bool is_hidden(uint32_t cluster) const { return hidden_[cluster] != 0; }
  bool is_shown(uint32_t node) const { return drawn_.stand_in[node] == node; }

  void sum_contents() {
    IdMap<NodeId, int64_t> allocated;
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      if (storage.born.valid()) allocated[storage.born] += storage.bytes;
    }
    contents_.resize(clusters().size());
    hidden_.assign(clusters().size(), 0);
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      const NodeId id = drawn_.nodes[node];
      if (graph_.target(id).kind() == TargetKind::kBuiltin) continue;
      Contents& at = contents_[drawn_.cluster_of[node]];
      ++at.operators;
      at.flops += flops_.of(id).matmul;
      at.bytes += std::as_const(allocated)[id];
      if (!is_shown(node)) continue;
      ++at.visible;
      at.first = std::min(at.first, node);
    }
    for (auto c = static_cast<uint32_t>(clusters().size()); c-- > 1;) {
      Contents& parent = contents_[clusters()[c].parent];
      parent.operators += contents_[c].operators;
      parent.flops += contents_[c].flops;
      parent.bytes += contents_[c].bytes;
      parent.visible += contents_[c].visible;
      parent.first = std::min(parent.first, contents_[c].first);
    }
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      hidden_[c] = hidden_[clusters()[c].parent] != 0 || clusters()[c].stands_for != ModuleCluster::kNone ? 1 : 0;
    }
  }

  // How many boxes there are with `depth` levels open, by depth.
  std::vector<size_t> boxes_by_depth() const {
    uint32_t deepest = 0;
    for (const ModuleCluster& cluster : clusters()) deepest = std::max(deepest, cluster.depth);
    std::vector<size_t> nodes(deepest + 2, 0);
    std::vector<size_t> modules(deepest + 2, 0);
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      if (is_shown(node)) ++nodes[clusters()[drawn_.cluster_of[node]].depth];
    }
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      if (!clusters()[c].phase && !is_hidden(c) && contents_[c].visible > 0) ++modules[clusters()[c].depth];
    }
    std::vector<size_t> boxes;
    size_t open = 0;
    for (uint32_t depth = 0; depth <= deepest; ++depth) {
      open += nodes[depth];
      boxes.push_back(open + modules[depth + 1]);
    }
    return boxes;
  }

  void choose_depth() {
    const auto boxes = boxes_by_depth();
    const auto deepest = static_cast<int>(boxes.size()) - 1;
    const bool asked = options_.depth.has_value();
    const size_t limit = asked ? options_.most_boxes : std::min(options_.comfortable_boxes, options_.most_boxes);
    const int wish = asked ? std::clamp(*options_.depth, 0, deepest) : deepest;
    view_.depth = wish;
    while (view_.depth > 0 && boxes[static_cast<size_t>(view_.depth)] > limit) --view_.depth;
    if (asked && view_.depth < wish) {
      view_.notes.push_back(
          fmt::format("depth {} instead of {}: more than {} boxes", view_.depth, wish, options_.most_boxes));
    } else if (!asked && view_.depth < deepest) {
      view_.notes.push_back(fmt::format("modules below level {} are collapsed", view_.depth));
    }
    collapsed_.assign(clusters().size(), 0);
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      collapsed_[c] = !clusters()[c].phase && clusters()[c].depth > static_cast<uint32_t>(view_.depth) ? 1 : 0;
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
    int64_t crowded = 0;
    for (uint32_t c = 1; c < clusters().size(); ++c) {
      if (collapsed_[c] != 0 || clusters()[c].phase || children[c] <= options_.most_children) continue;
      collapsed_[c] = 1;
      ++crowded;
    }
    if (crowded > 0) {
      view_.notes.push_back(
          fmt::format("{} modules with more than {} boxes are collapsed", crowded, options_.most_children));
    }
    // The outermost collapsed cluster around each.
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
    const Contents& contents = contents_[c];
    std::string text = clusters()[c].class_name.empty() ? "" : clusters()[c].class_name + ": ";
    text += fmt::format("{} {}", contents.operators, contents.operators == 1 ? "operator" : "operators");
    if (contents.flops > 0) text += fmt::format(", {}FLOPs", spaced(human_count(contents.flops)));
    if (clusters()[c].repeats > 1) text += " each";
    return text;
  }
  // "7.44 G" and "FLOPs" make "7.44 GFLOPs", "320" and "FLOPs" make "320 FLOPs".
  static std::string spaced(std::string count) {
    if (std::isdigit(static_cast<unsigned char>(count.back())) != 0) count += ' ';
    return count;
  }

  void make_boxes() {
    box_of_node_.assign(drawn_.nodes.size(), kNone);
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) {
      if (!is_shown(node)) continue;
      const uint32_t cluster = drawn_.cluster_of[node];
      const uint32_t module = collapsed_into_[cluster];
      if (module == ModuleCluster::kNone) {
        box_of_node_[node] = add_box(node, cluster);
      } else if (contents_[module].visible == 1) {
        // One operator is clearer than a box that says so.
        box_of_node_[node] = add_box(node, clusters()[module].parent);
        std::string name;
        for (uint32_t c = cluster; c != module; c = clusters()[c].parent) name = "." + clusters()[c].name + name;
        view_.boxes.back().lines.insert(view_.boxes.back().lines.begin(), shortened(display_name(module) + name));
        named_.insert(box_of_node_[node]);
      } else {
        if (box_of_cluster_[module] == kNone) box_of_cluster_[module] = add_module_box(node, module);
        box_of_node_[node] = box_of_cluster_[module];
      }
    }
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node)
      box_of_node_[node] = box_of_node_[drawn_.stand_in[node]];
  }

  uint32_t add_module_box(uint32_t first_node, uint32_t module) {
    ViewBox box;
    box.cluster = clusters()[module].parent;
    box.id = fmt::format("m{}", drawn_.position[first_node]);
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
    return static_cast<uint32_t>(view_.boxes.size() - 1);
  }

  uint32_t add_box(uint32_t node, uint32_t cluster) {
    const NodeId id = drawn_.nodes[node];
    ViewBox box;
    box.cluster = cluster;
    box.id = fmt::format("n{}", drawn_.position[node]);
    box.category = category_of(graph_, id);
    const Target& target = graph_.target(id);
    if (target.kind() == TargetKind::kBuiltin) {
      const std::string name = placeholder_name(graph_, id);
      box.lines.push_back(shortened(name.empty() ? std::string(short_name(target.name())) : name));
      graph_.for_each_output(id, [&](ValueId value) { box.lines.push_back(shortened(type_label(graph_, value))); });
    } else {
      box.lines.push_back(std::string(short_name(target.name())));
      if (!options_.show_parameters) add_parameters(id, box.lines);
    }
    box.tooltip = tooltip(id);
    view_.boxes.push_back(std::move(box));
    return static_cast<uint32_t>(view_.boxes.size() - 1);
  }

  // "weight f32[64,3,7,7]", "weight, bias f32[64]": the parameters, buffers and constants that the node reads, directly
  // or through views, those of one type on one line.
  void add_parameters(NodeId id, std::vector<std::string>& lines) const {
    const std::string module = module_path(graph_, id) + ".";
    std::vector<ValueId> seen;
    std::vector<std::pair<std::string, std::string>> names_by_type;
    graph_.for_each_input(id, [&](ValueId value) {
      const ValueId origin = drawn_.origin_of(value);
      const NodeId producer = graph_.value(origin).producer;
      if (!producer.valid() || graph_.is_erased(producer) || !is_placeholder(graph_.node(producer).target)) return;
      if (graph_.node(producer).target == target_of(Builtin::kInput)) return;
      if (std::find(seen.begin(), seen.end(), origin) != seen.end()) return;
      seen.push_back(origin);
      std::string name = placeholder_name(graph_, producer);
      if (name.empty()) name = "constant";
      if (module.size() > 1 && name.starts_with(module)) name = name.substr(module.size());
      const std::string type = type_label(graph_, origin);
      const auto same = std::find_if(names_by_type.begin(), names_by_type.end(),
                                     [&](const auto& line) { return line.first == type; });
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

  std::string tooltip(NodeId id) const {
    const Target& target = graph_.target(id);
    std::string text = target.name();
    const auto formal = target.schema().arguments();
    const auto actual = graph_.arguments(id);
    for (size_t i = 0; i < formal.size() && i < actual.size(); ++i) {
      std::string value;
      if (actual[i].kind == ArgumentKind::kInt) value = std::to_string(actual[i].i);
      if (actual[i].kind == ArgumentKind::kFloat) value = fmt::format("{}", actual[i].d);
      if (actual[i].kind == ArgumentKind::kBool) value = actual[i].b ? "true" : "false";
      if (actual[i].kind == ArgumentKind::kIntList)
        value = fmt::format("[{}]", fmt::join(graph_.ints(actual[i]), ", "));
      if (!value.empty()) text += fmt::format("\n{} = {}", formal[i].name(), value);
    }
    graph_.for_each_output(id, [&](ValueId value) {
      text += "\n-> " + type_label(graph_, value);
      if (graph_.value(value).kind != ValueKind::kTensor) return;
      text += fmt::format(" stride [{}], {} bytes", fmt::join(graph_.strides(value), ","),
                          exact_count(graph_.logical_bytes(value)));
    });
    const NodeFlops& flops = flops_.of(id);
    if (flops.matmul > 0) text += fmt::format("\n{} FLOPs", exact_count(flops.matmul));
    if (flops.elementwise > 0) text += fmt::format("\n{} elementwise", exact_count(flops.elementwise));
    if (const std::string module = module_path(graph_, id); !module.empty()) text += "\nin " + module;
    if (const auto source = graph_.text_or_empty(graph_.node(id).source); !source.empty()) {
      text += fmt::format("\nat {}", source);
    }
    return text;
  }

  // Clusters of the picture: the open modules that are not hidden, under their indices in the module tree for now.
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

  // More boxes than can be drawn although all modules are closed: neighbours in program order become one box.
  void limit_boxes() {
    const size_t count = view_.boxes.size();
    if (options_.most_boxes == 0 || count <= options_.most_boxes) return;
    const size_t each = (count + options_.most_boxes - 1) / options_.most_boxes;
    std::vector<ViewBox> joined;
    std::vector<uint32_t> joined_into(count);
    size_t in_last = 0;
    for (size_t b = 0; b < count; ++b) {
      const bool same_place = !joined.empty() && joined.back().cluster == view_.boxes[b].cluster;
      if (!same_place || in_last == each) {
        joined.push_back(std::move(view_.boxes[b]));
        in_last = 1;
      } else {
        ViewBox& last = joined.back();
        if (++in_last == 2) {
          last.lines = {last.lines.front(), "", ""};
          last.category = OperatorCategory::kModule;
          last.tooltip.clear();
        }
        last.lines[1] = "... " + view_.boxes[b].lines.front();
        last.lines[2] = fmt::format("{} boxes", in_last);
      }
      joined_into[b] = static_cast<uint32_t>(joined.size() - 1);
    }
    view_.notes.push_back(
        fmt::format("runs of up to {} boxes are joined: {} would be more than {}", each, count, options_.most_boxes));
    view_.boxes = std::move(joined);
    named_.clear();
    for (uint32_t& box : box_of_node_) box = box == kNone ? kNone : joined_into[box];
  }

  // Whether two nodes lie in different copies of one run of equal modules.
  bool in_different_copies(uint32_t a, uint32_t b) const {
    for (uint32_t c = drawn_.cluster_of[a]; c != 0; c = clusters()[c].parent) {
      if (clusters()[c].run == ModuleCluster::kNone) continue;
      for (uint32_t d = drawn_.cluster_of[b]; d != 0; d = clusters()[d].parent) {
        if (clusters()[d].run == clusters()[c].run && c != d) return true;
      }
    }
    return false;
  }

  void make_edges() {
    std::map<std::tuple<uint32_t, uint32_t, bool>, uint32_t> edges;
    std::set<std::tuple<uint32_t, uint32_t, uint32_t, std::string>> seen;  // edge, producer, result, type
    std::vector<size_t> ways;
    int64_t from_hidden = 0;
    for (uint32_t user = 0; user < drawn_.nodes.size(); ++user) {
      graph_.for_each_input(drawn_.nodes[user], [&](ValueId value) {
        const ValueId origin = drawn_.origin_of(value);
        const NodeId producer = graph_.value(origin).producer;
        if (!producer.valid() || graph_.is_erased(producer)) return;
        const uint32_t from_node = std::as_const(drawn_.index)[producer];
        if (from_node == kNone) {
          if (graph_.target(producer).kind() != TargetKind::kBuiltin) ++from_hidden;
          return;
        }
        const uint32_t from = box_of_node_[from_node];
        const uint32_t to = box_of_node_[user];
        const bool next_copy = in_different_copies(from_node, user);
        if (from == kNone || to == kNone || (from == to && !next_copy)) return;
        const auto [entry, added] = edges.try_emplace({from, to, next_copy}, static_cast<uint32_t>(view_.edges.size()));
        if (added) {
          view_.edges.push_back({.from = from, .to = to, .to_next_copy = next_copy});
          ways.push_back(0);
        }
        uint32_t result = 0;
        uint32_t place = 0;
        graph_.for_each_output(producer, [&](ValueId output) {
          if (output == origin) result = place;
          ++place;
        });
        const std::string type = type_label(graph_, value);
        if (!seen.emplace(entry->second, drawn_.stand_in[from_node], result, type).second) return;
        ViewEdge& edge = view_.edges[entry->second];
        if (ways[entry->second]++ == 0) edge.label = shortened(type, 28);
        if (ways[entry->second] <= kMostTooltipLines) {
          edge.tooltip += (edge.tooltip.empty() ? "" : "\n") + type + " of " + graph_.target(producer).name();
        }
        edge.bytes = std::max(edge.bytes, graph_.logical_bytes(value));
      });
    }
    for (size_t e = 0; e < ways.size(); ++e) {
      if (ways[e] > 1) view_.edges[e].label += fmt::format(" +{}", ways[e] - 1);
    }
    if (from_hidden > 0) {
      view_.notes.push_back(fmt::format("{} tensors that come from phases not shown have no edge", from_hidden));
    }
  }

  // Drops clusters without boxes, turns clusters of one box into a line of its label, joins a container with its only
  // module, and numbers what is left.
  void tidy_clusters() {
    const auto count = static_cast<uint32_t>(view_.clusters.size());
    std::vector<uint32_t> boxes(count, 0);
    std::vector<uint32_t> children(count, 0);
    std::vector<uint32_t> only_box(count, kNone);
    std::vector<uint32_t> only_child(count, kNone);
    std::vector<uint32_t> first(count, kNone);
    std::vector<uint8_t> dropped(count, 0);
    for (uint32_t b = 0; b < view_.boxes.size(); ++b) {
      const uint32_t c = view_.boxes[b].cluster;
      ++boxes[c];
      only_box[c] = b;
      first[c] = std::min(first[c], b);
    }
    for (uint32_t c = count; c-- > 1;) {
      ViewCluster& cluster = view_.clusters[c];
      const uint32_t parent = cluster.parent;
      if (boxes[c] + children[c] == 0) {
        dropped[c] = 1;
        continue;
      }
      first[parent] = std::min(first[parent], first[c]);
      if (boxes[c] == 1 && children[c] == 0 && !cluster.phase) {
        dropped[c] = 1;
        ViewBox& box = view_.boxes[only_box[c]];
        box.cluster = parent;
        if (!named_.insert(only_box[c]).second) {
          box.lines.front() = shortened(cluster.title + "." + box.lines.front());
        } else {
          box.lines.insert(box.lines.begin(), cluster.title);
        }
        ++boxes[parent];
        only_box[parent] = only_box[c];
        continue;
      }
      if (boxes[c] == 0 && children[c] == 1 && clusters()[c].class_name.empty() && !cluster.phase) {
        dropped[c] = 1;
        ViewCluster& child = view_.clusters[only_child[c]];
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
      ViewCluster& cluster = view_.clusters[c];
      cluster.parent = c == 0 ? ViewCluster::kNone : place[cluster.parent];
      cluster.id = c == 0 ? "" : fmt::format("c{}", place[c]);
      kept.push_back(std::move(cluster));
    }
    view_.clusters = std::move(kept);
    for (ViewBox& box : view_.boxes) {
      box.cluster = place[box.cluster];
      // A module called relu whose only operator is relu.
      if (box.lines.size() > 1 && box.lines[0] == box.lines[1]) box.lines.erase(box.lines.begin());
    }
  }

  void write_notes() {
    if (drawn_.hidden_nodes > 0) {
      view_.notes.push_back(fmt::format("{} operators of phases not shown: {}", drawn_.hidden_nodes,
                                        fmt::join(drawn_.hidden_phases, ", ")));
    }
    if (drawn_.plumbing > 0) view_.notes.push_back(fmt::format("{} views are not drawn", drawn_.plumbing));
    int64_t folded = 0;
    for (uint32_t node = 0; node < drawn_.nodes.size(); ++node) folded += is_shown(node) ? 0 : 1;
    if (folded > 0) view_.notes.push_back(fmt::format("{} operators are in repeated layers drawn once", folded));
  }

  const Graph& graph_;
  const ViewOptions& options_;
  const DrawnGraph drawn_;
  const Flops flops_;
  ViewModel view_;
  std::vector<Contents> contents_;
  std::vector<uint8_t> hidden_;           // clusters in a copy that is not drawn
  std::vector<uint8_t> collapsed_;        // clusters drawn as one box
  std::vector<uint32_t> collapsed_into_;  // the outermost such cluster around each
  std::vector<uint32_t> box_of_cluster_;
  std::vector<uint32_t> box_of_node_;
  std::set<uint32_t> named_;  // boxes whose first line is a module's name
};

}  // namespace

ViewModel ViewModel::of(const Graph& graph, const ViewOptions& options) { return ViewBuilder(graph, options).build(); }

}  // namespace shadowgraph
