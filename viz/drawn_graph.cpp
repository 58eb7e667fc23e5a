#include "viz/drawn_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/structural_hash.h"
#include "ir/text/words.h"
#include "support/hash.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kMaxNodesOfAllPhases = 300;
constexpr uint32_t kDeepestModule = 64;  // deeper modules are merged into the last level

// Returns, for each phase, whether it is shown.
std::vector<uint8_t> shown_phases(const Graph& graph, const ViewOptions& options) {
  std::vector<uint8_t> shown(graph.phase_count(), 0);
  if (options.phases.empty()) {
    const bool part = !options.around.empty() || options.path.has_value();
    const bool all = part || graph.node_count() <= kMaxNodesOfAllPhases;
    bool forward = false;
    for (NodeId node : graph.nodes()) {
      forward = forward || (graph.node(node).phase == Graph::kForward &&
                            graph.target(graph.node(node).target).kind() != TargetKind::kBuiltin);
    }
    for (uint32_t i = 0; i < shown.size(); ++i) shown[i] = all || !forward || i == Graph::kForward.index;
    return shown;
  }
  for (const std::string& name : options.phases) {
    bool known = false;
    std::string names;
    for (uint32_t i = 0; i < shown.size(); ++i) {
      names += (i == 0 ? "" : ", ") + graph.phase_name(PhaseId(i));
      if (graph.phase_name(PhaseId(i)) != name) continue;
      shown[i] = 1;
      known = true;
    }
    if (!known) throw Error("the graph has no phase '" + name + "'; choose from " + names);
  }
  return shown;
}

class Selector {
 public:
  Selector(const Graph& graph, const ViewOptions& options, DrawnGraph& drawn)
      : graph_(graph),
        options_(options),
        drawn_(drawn),
        named_(named_nodes(options)),
        shown_(shown_phases(graph, options)) {}

  void select() {
    std::vector<int64_t> hidden(graph_.phase_count(), 0);
    uint32_t position = 0;
    for (NodeId node : graph_.nodes()) {
      const uint32_t at = position++;
      const Node& n = graph_.node(node);
      const bool output = n.target == target_of(Builtin::kOutput);
      if (!output && shown_[n.phase.index] == 0) {
        if (graph_.target(n.target).kind() != TargetKind::kBuiltin) ++hidden[n.phase.index];
        pass_through(node);
        continue;
      }
      if (std::as_const(named_)[node] == 0 && !is_drawn(n.target)) {
        pass_through(node);
        if (graph_.target(n.target).kind() != TargetKind::kBuiltin) ++drawn_.plumbing;
        continue;
      }
      drawn_.index[node] = static_cast<uint32_t>(drawn_.nodes.size());
      drawn_.nodes.push_back(node);
      drawn_.position.push_back(at);
    }
    for (uint32_t i = 0; i < hidden.size(); ++i) {
      if (hidden[i] == 0) continue;
      drawn_.hidden_phases.push_back(graph_.phase_name(PhaseId(i)));
      drawn_.hidden_nodes += hidden[i];
    }
  }

 private:
  bool is_view(TargetId target) const { return graph_.facts(target).is_view; }

  bool is_drawn(TargetId target) {
    if (target == target_of(Builtin::kGradient)) return false;
    if (is_placeholder(target) && target != target_of(Builtin::kInput)) return options_.show_parameters;
    return options_.show_views || !is_view(target);
  }

  // Maps a node that is not drawn to its first operand. Only for views: other nodes compute new values.
  void pass_through(NodeId node) {
    if (is_placeholder(graph_.node(node).target) || !is_view(graph_.node(node).target)) return;
    ValueId source;
    graph_.for_each_input(node, [&](ValueId value) {
      if (!source.valid() && graph_.value(value).kind == ValueKind::kTensor) source = drawn_.origin_of(value);
    });
    if (!source.valid()) return;
    graph_.for_each_output(node, [&](ValueId value) { drawn_.origin[value] = source; });
  }

  const Graph& graph_;
  const ViewOptions& options_;
  DrawnGraph& drawn_;
  const IdMap<NodeId, uint8_t> named_;
  std::vector<uint8_t> shown_;
};

// Assigns every drawn node to the cluster of its module call.
class Clusters {
 public:
  Clusters(const Graph& graph, DrawnGraph& drawn) : graph_(graph), drawn_(drawn) {
    drawn_.clusters.emplace_back();
    by_region_.resize(graph.phase_count(), IdMap<RegionId, uint32_t>(ModuleCluster::kNone));
    phase_cluster_.resize(graph.phase_count(), ModuleCluster::kNone);
    phase_cluster_[Graph::kForward.index] = 0;
  }

  void build() {
    for (uint32_t i = 0; i < drawn_.nodes.size(); ++i) {
      const NodeId node = drawn_.nodes[i];
      const bool builtin = graph_.target(node).kind() == TargetKind::kBuiltin;
      const uint32_t cluster = builtin ? 0 : cluster_of(graph_.node(node).phase, charged_region(graph_, node));
      drawn_.cluster_of.push_back(cluster);
      drawn_.clusters[cluster].nodes.push_back(i);
    }
  }

 private:
  uint32_t of_phase(PhaseId phase) {
    uint32_t& cluster = phase_cluster_[phase.index];
    if (cluster == ModuleCluster::kNone) {
      cluster = add(0, graph_.phase_name(phase));
      drawn_.clusters[cluster].phase = true;
      drawn_.clusters[cluster].depth = 0;
    }
    return cluster;
  }

  uint32_t add(uint32_t parent, std::string name) {
    const auto at = static_cast<uint32_t>(drawn_.clusters.size());
    drawn_.clusters[parent].children.push_back(at);
    ModuleCluster cluster;
    cluster.parent = parent;
    cluster.depth = drawn_.clusters[parent].depth + 1;
    cluster.name = std::move(name);
    drawn_.clusters.push_back(std::move(cluster));
    return at;
  }

  uint32_t cluster_of(PhaseId phase, RegionId region) {
    auto& known = by_region_[phase.index];
    // The module regions from here up to one that has a cluster.
    std::vector<RegionId> pending;
    uint32_t cluster = of_phase(phase);
    std::string path;
    RegionId at = region;
    for (uint32_t steps = 0; at.valid() && steps <= graph_.region_count(); ++steps) {
      if (graph_.region(at).kind == RegionKind::kModule) {
        if (const uint32_t found = std::as_const(known)[at]; found != ModuleCluster::kNone) {
          cluster = found;
          path = graph_.text_or_empty(graph_.region(at).name);
          break;
        }
        pending.push_back(at);
      }
      at = graph_.region(at).parent;
    }
    for (; !pending.empty(); pending.pop_back()) {
      const Region& module = graph_.region(pending.back());
      const std::string name(graph_.text_or_empty(module.name));
      cluster = enter(cluster, path, name, module);
      path = name;
      known[pending.back()] = cluster;
    }
    return cluster;
  }

  // Returns the cluster of a module called `name` inside the module `path`, which has cluster `at`.
  uint32_t enter(uint32_t at, const std::string& path, const std::string& name, const Region& module) {
    const bool below = !path.empty() && name.size() > path.size() && name.starts_with(path) && name[path.size()] == '.';
    std::string rest = path.empty() || !below ? name : name.substr(path.size() + 1);
    if (rest.empty() || name == path) return at;
    // Containers in between have clusters too, although they have no regions.
    for (size_t dot = rest.find('.'); dot != std::string::npos && drawn_.clusters[at].depth + 1 < kDeepestModule;
         dot = rest.find('.')) {
      const auto [entry, added] = containers_.try_emplace({at, rest.substr(0, dot)}, 0);
      if (added) entry->second = add(at, rest.substr(0, dot));
      at = entry->second;
      rest = rest.substr(dot + 1);
    }
    if (drawn_.clusters[at].depth >= kDeepestModule) return at;
    at = add(at, rest);
    drawn_.clusters[at].class_name = graph_.text_or_empty(module.class_name);
    drawn_.clusters[at].call = module.call;
    return at;
  }

  const Graph& graph_;
  DrawnGraph& drawn_;
  std::vector<IdMap<RegionId, uint32_t>> by_region_;
  std::vector<uint32_t> phase_cluster_;
  std::map<std::pair<uint32_t, std::string>, uint32_t> containers_;
};

// Finds repeated layers: sibling modules, numbered or called repeatedly, that are identical by
// ir/analysis/structural_hash.h. A module's block is its drawn nodes, at the same relative module paths; an operand
// that is a view without a box counts as its source. Linear in nodes times nesting.
class Folder {
 public:
  Folder(const Graph& graph, const IdMap<NodeId, uint32_t>& labels, DrawnGraph& drawn)
      : labels_(labels), drawn_(drawn), blocks_(graph) {}

  void fold() {
    std::vector<std::pair<uint32_t, uint32_t>> hidden;  // a copy and the sibling drawn for it, outermost first
    for (uint32_t parent = 0; parent < drawn_.clusters.size(); ++parent) {
      const std::vector<uint32_t> siblings = drawn_.clusters[parent].children;
      std::vector<Sibling> names;
      for (const uint32_t sibling : siblings) {
        const ModuleCluster& cluster = drawn_.clusters[sibling];
        names.push_back({cluster.name, cluster.class_name, cluster.call});
      }
      for (size_t first = 0; first < siblings.size();) {
        // Phases have no number, so they never repeat each other.
        const size_t last = end_of_run(names, first, [&](size_t i) { return content(siblings[i]); });
        if (last - first > 1) mark_run(siblings, first, last, hidden);
        first = last;
      }
    }
    for (const auto& [copy, original] : hidden) {
      const auto from = members(copy);
      const auto to = members(original);
      for (size_t i = 0; i < from.size(); ++i) {
        // The outermost copy takes precedence, and comes first.
        if (drawn_.stand_in[from[i]] == from[i]) drawn_.stand_in[from[i]] = to[i];
      }
    }
    // A stand-in may itself be in an inner copy; each step leaves one level of nesting.
    for (uint32_t& stand_in : drawn_.stand_in) {
      while (drawn_.stand_in[stand_in] != stand_in) stand_in = drawn_.stand_in[stand_in];
    }
  }

 private:
  void mark_run(const std::vector<uint32_t>& siblings, size_t first, size_t last,
                std::vector<std::pair<uint32_t, uint32_t>>& hidden) {
    ModuleCluster& original = drawn_.clusters[siblings[first]];
    const ModuleCluster& end = drawn_.clusters[siblings[last - 1]];
    original.repeats = static_cast<uint32_t>(last - first);
    original.run = siblings[first];
    original.span = original.name == end.name ? fmt::format("{} (calls {}..{})", original.name, original.call, end.call)
                                              : fmt::format("{{{}..{}}}", original.name, end.name);
    for (size_t i = first + 1; i < last; ++i) {
      drawn_.clusters[siblings[i]].stands_for = siblings[first];
      drawn_.clusters[siblings[i]].run = siblings[first];
      hidden.emplace_back(siblings[i], siblings[first]);
    }
  }

  // Returns all drawn nodes below a cluster, in program order.
  std::vector<uint32_t> members(uint32_t cluster) const {
    std::vector<uint32_t> all;
    std::vector<uint32_t> pending{cluster};
    while (!pending.empty()) {
      const ModuleCluster& at = drawn_.clusters[pending.back()];
      pending.pop_back();
      all.insert(all.end(), at.nodes.begin(), at.nodes.end());
      pending.insert(pending.end(), at.children.begin(), at.children.end());
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  uint64_t content(uint32_t cluster) {
    std::vector<NodeId> block;
    for (const uint32_t node : members(cluster)) block.push_back(drawn_.nodes[node]);
    const auto place = [&](NodeId node) {
      uint64_t hash = labels_[node];
      for (uint32_t at = drawn_.cluster_of[std::as_const(drawn_.index)[node]]; at != cluster;
           at = drawn_.clusters[at].parent) {
        hash = mixed(mixed(hash, std::hash<std::string>()(drawn_.clusters[at].name)), drawn_.clusters[at].call);
      }
      return hash;
    };
    return blocks_.of(block, place, [&](ValueId v) { return drawn_.origin_of(v); });
  }

  const IdMap<NodeId, uint32_t>& labels_;
  DrawnGraph& drawn_;
  BlockHashes blocks_;
};

}  // namespace

DrawnGraph DrawnGraph::of(const Graph& graph, const ViewOptions& options, const MergedGraph* merged) {
  DrawnGraph drawn;
  Selector(graph, options, drawn).select();
  std::vector<std::pair<ValueId, NodeId>> lost;
  if (merged != nullptr) {
    for (const MergedGraph::LostUse& use : merged->lost_uses) lost.emplace_back(use.value, use.user);
  }
  keep_part(graph, options, lost, drawn);
  Clusters(graph, drawn).build();
  drawn.stand_in.resize(drawn.nodes.size());
  for (uint32_t i = 0; i < drawn.stand_in.size(); ++i) drawn.stand_in[i] = i;
  if (!options.fold_repeats) return drawn;
  // A named or changed node gets a unique label, so that it is not folded.
  IdMap<NodeId, uint32_t> labels;
  const auto named = named_nodes(options);
  for (uint32_t i = 0; i < drawn.nodes.size(); ++i) {
    const NodeId node = drawn.nodes[i];
    if (merged != nullptr && merged->marks[node] != ViewMark::kNone)
      labels[node] = static_cast<uint32_t>(merged->marks[node]);
    if (named[node] != 0) labels[node] = static_cast<uint32_t>(ViewMark::kChanged) + 1 + i;
  }
  Folder(graph, labels, drawn).fold();
  return drawn;
}

std::string type_label(const Graph& graph, ValueId value) {
  const Value& v = graph.value(value);
  if (v.kind != ValueKind::kTensor) {
    static constexpr const char* kNames[] = {"tensor", "int", "float", "bool"};
    return kNames[static_cast<size_t>(v.kind)];
  }
  return fmt::format("{}[{}]", dtype_word(v.dtype), fmt::join(graph.sizes(value), ","));
}

std::vector<ClusterContents> contents_of(const Graph& graph, const DrawnGraph& drawn, const Flops& flops) {
  IdMap<NodeId, int64_t> allocated;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (storage.born.valid()) allocated[storage.born] += storage.bytes;
  }
  std::vector<ClusterContents> contents(drawn.clusters.size());
  for (uint32_t node = 0; node < drawn.nodes.size(); ++node) {
    const NodeId id = drawn.nodes[node];
    if (graph.target(id).kind() == TargetKind::kBuiltin) continue;
    ClusterContents& at = contents[drawn.cluster_of[node]];
    ++at.operators;
    at.flops += flops.of(id).matmul;
    at.bytes += std::as_const(allocated)[id];
    if (drawn.stand_in[node] != node) continue;
    ++at.visible;
    at.first = std::min(at.first, node);
  }
  for (auto c = static_cast<uint32_t>(drawn.clusters.size()); c-- > 1;) {
    ClusterContents& parent = contents[drawn.clusters[c].parent];
    parent.operators += contents[c].operators;
    parent.flops += contents[c].flops;
    parent.bytes += contents[c].bytes;
    parent.visible += contents[c].visible;
    parent.first = std::min(parent.first, contents[c].first);
  }
  return contents;
}

std::vector<uint8_t> hidden_clusters(const DrawnGraph& drawn) {
  std::vector<uint8_t> hidden(drawn.clusters.size(), 0);
  for (uint32_t c = 1; c < hidden.size(); ++c) {
    const ModuleCluster& cluster = drawn.clusters[c];
    hidden[c] = hidden[cluster.parent] != 0 || cluster.stands_for != ModuleCluster::kNone ? 1 : 0;
  }
  return hidden;
}

std::vector<size_t> boxes_by_depth(const DrawnGraph& drawn, const std::vector<ClusterContents>& contents,
                                   const std::vector<uint8_t>& hidden) {
  uint32_t deepest = 0;
  for (const ModuleCluster& cluster : drawn.clusters) deepest = std::max(deepest, cluster.depth);
  std::vector<size_t> nodes(deepest + 2, 0);
  std::vector<size_t> modules(deepest + 2, 0);
  for (uint32_t node = 0; node < drawn.nodes.size(); ++node) {
    if (drawn.stand_in[node] == node) ++nodes[drawn.clusters[drawn.cluster_of[node]].depth];
  }
  for (uint32_t c = 1; c < drawn.clusters.size(); ++c) {
    if (!drawn.clusters[c].phase && hidden[c] == 0 && contents[c].visible > 0) ++modules[drawn.clusters[c].depth];
  }
  std::vector<size_t> boxes;
  size_t open = 0;
  for (uint32_t depth = 0; depth <= deepest; ++depth) {
    open += nodes[depth];
    boxes.push_back(open + modules[depth + 1]);
  }
  return boxes;
}

size_t rows_of(const ViewModel& view) {
  std::vector<uint32_t> order(view.edges.size());
  for (uint32_t e = 0; e < order.size(); ++e) order[e] = e;
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return view.edges[a].from < view.edges[b].from; });
  std::vector<size_t> row(view.boxes.size(), 1);
  size_t most = view.boxes.empty() ? 0 : 1;
  for (const uint32_t e : order) {
    const ViewEdge& edge = view.edges[e];
    if (edge.to_next_copy || edge.to <= edge.from) continue;
    row[edge.to] = std::max(row[edge.to], row[edge.from] + 1);
    most = std::max(most, row[edge.to]);
  }
  return most;
}

BoxNodes nodes_of_boxes(const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                        const std::vector<uint32_t>& levels) {
  BoxNodes nodes(levels.size());
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> copies;  // copy index by box and cluster
  for (uint32_t node = 0; node < drawn.nodes.size(); ++node) {
    const uint32_t box = box_of_node[node];
    if (box == DrawnGraph::kNone) continue;
    uint32_t cluster = drawn.cluster_of[node];
    while (drawn.clusters[cluster].depth > levels[box]) cluster = drawn.clusters[cluster].parent;
    const auto [entry, added] = copies.try_emplace({box, cluster}, static_cast<uint32_t>(nodes[box].size()));
    if (added) nodes[box].emplace_back();
    nodes[box][entry->second].push_back(drawn.nodes[node]);
  }
  return nodes;
}

}  // namespace shadowgraph
