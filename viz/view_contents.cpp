#include "viz/view_contents.h"

#include <algorithm>
#include <map>

namespace shadowgraph {

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
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> copies;  // box and cluster: which copy
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
