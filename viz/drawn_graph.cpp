#include "viz/drawn_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ir/analysis/module_tree.h"
#include "ir/text/words.h"
#include "viz/graph_part.h"
#include "viz/merged_graph.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kMostNodesOfAllPhases = 300;
constexpr uint32_t kDeepestModule = 64;  // what is deeper belongs to the last level

// Returns which phases to show.
std::vector<uint8_t> shown_phases(const Graph& graph, const ViewOptions& options) {
  std::vector<uint8_t> shown(graph.phase_count(), 0);
  if (options.phases.empty()) {
    const bool part = !options.around.empty() || options.path.has_value();
    const bool all = part || graph.node_count() <= kMostNodesOfAllPhases;
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
    if (!known) throw Error("the graph has no phase '" + name + "'; it has " + names);
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

  // Lets a view show what its first tensor shows. Only views do: anything else makes a value of its own.
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

// Puts every drawn node into the cluster of its module call.
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
    // These are the module regions from here up to one that has a cluster.
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

  // Returns the cluster of a module called `name` inside the module `path`, whose cluster is `at`.
  uint32_t enter(uint32_t at, const std::string& path, const std::string& name, const Region& module) {
    const bool below = !path.empty() && name.size() > path.size() && name.starts_with(path) && name[path.size()] == '.';
    std::string rest = path.empty() || !below ? name : name.substr(path.size() + 1);
    if (rest.empty() || name == path) return at;
    // Containers on the way have clusters, too, though no region names them.
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
  // A node that is named or that differs is like no other.
  IdMap<NodeId, uint32_t> labels;
  const auto named = named_nodes(options);
  for (uint32_t i = 0; i < drawn.nodes.size(); ++i) {
    const NodeId node = drawn.nodes[i];
    if (merged != nullptr && merged->marks[node] != ViewMark::kNone)
      labels[node] = static_cast<uint32_t>(merged->marks[node]);
    if (named[node] != 0) labels[node] = static_cast<uint32_t>(ViewMark::kChanged) + 1 + i;
  }
  fold_repeats(graph, labels, drawn);
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

}  // namespace shadowgraph
