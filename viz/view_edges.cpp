#include "viz/view_edges.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "viz/box_labels.h"

namespace shadowgraph {
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

}  // namespace shadowgraph
