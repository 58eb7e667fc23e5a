#include "passes/recompute/regions.h"

#include <unordered_map>

#include "ir/records.h"

namespace shadowgraph {

void put_parents_first(Graph& graph) {
  const uint32_t count = graph.region_count();
  std::vector<Region> ordered;
  ordered.reserve(count);
  std::vector<RegionId> moved(count);
  std::vector<RegionId> chain;
  for (uint32_t i = 0; i < count; ++i) {
    // Climbs to the first ancestor that is already placed, and assigns places on the way back.
    for (RegionId id(i); id.valid() && !moved[id.index].valid(); id = graph.region(id).parent) chain.push_back(id);
    for (; !chain.empty(); chain.pop_back()) {
      Region region = graph.region(chain.back());
      if (region.parent.valid()) region.parent = moved[region.parent.index];
      moved[chain.back().index] = RegionId(static_cast<uint32_t>(ordered.size()));
      ordered.push_back(region);
    }
  }
  for (uint32_t i = 0; i < count; ++i) mutable_region(graph, RegionId(i)) = ordered[i];
  for (const NodeId node : graph.nodes()) mutable_node(graph, node).region = moved[graph.node(node).region.index];
}

namespace {

// Moves a range of nodes to a new region, with the regions that are entirely inside it.
class RunOfNodes {
 public:
  RunOfNodes(Graph& graph, std::span<const NodeId> nodes) : graph_(graph), nodes_(nodes) {
    count();
    dissolve_split_composites();
  }

  // Returns the innermost region that contains all nodes.
  RegionId common_region() const {
    std::vector<RegionId> common = path_to(graph_.node(nodes_.front()).region);
    for (const NodeId n : nodes_) {
      const std::vector<RegionId> path = path_to(graph_.node(n).region);
      size_t same = 0;
      while (same < common.size() && same < path.size() && common[same] == path[same]) ++same;
      common.resize(same);
    }
    // A region without other nodes moves into the new one.
    while (common.size() > 1 && is_whole(common.back())) common.pop_back();
    return common.back();
  }

  void move(RegionId from, RegionId to) {
    moved_[from] = to;
    for (const NodeId n : nodes_) mutable_node(graph_, n).region = moved(graph_.node(n).region);
  }

 private:
  // From the root inwards.
  std::vector<RegionId> path_to(RegionId region) const {
    std::vector<RegionId> path;
    for (; region.valid(); region = graph_.region(region).parent) path.push_back(region);
    return {path.rbegin(), path.rend()};
  }

  void count() {
    for (const NodeId n : graph_.nodes()) {
      for (RegionId r = graph_.node(n).region; r.valid(); r = graph_.region(r).parent) ++all_[r];
    }
    for (const NodeId n : nodes_) {
      for (RegionId r = graph_.node(n).region; r.valid(); r = graph_.region(r).parent) ++here_[r];
    }
  }
  bool is_whole(RegionId r) const { return here_[r] == all_[r]; }
  bool is_split(RegionId r) const { return here_[r] != 0 && !is_whole(r); }

  // A part of an operator's nodes does not represent a call of the operator.
  void dissolve_split_composites() {
    std::vector<bool> dissolved(graph_.region_count(), false);
    bool any = false;
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId r(i);
      dissolved[i] = graph_.region(r).kind == RegionKind::kComposite && is_split(r);
      any = any || dissolved[i];
    }
    if (!any) return;
    const auto outside = [&](RegionId r) {
      while (dissolved[r.index]) r = graph_.region(r).parent;
      return r;
    };
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      Region& region = mutable_region(graph_, RegionId(i));
      region.parent = outside(region.parent);
    }
    for (const NodeId n : graph_.nodes()) mutable_node(graph_, n).region = outside(graph_.node(n).region);
  }

  RegionId moved(RegionId region) {
    std::vector<RegionId> chain;  // up to one that was visited, innermost first
    while (!moved_.contains(region)) {
      chain.push_back(region);
      region = graph_.region(region).parent;
    }
    RegionId to = moved_.at(region);
    for (; !chain.empty(); chain.pop_back()) {
      const RegionId inner = chain.back();
      if (is_whole(inner)) {
        mutable_region(graph_, inner).parent = to;
        to = inner;
      } else {
        Region half = graph_.region(inner);
        half.parent = to;
        to = graph_.add_region(half);
      }
      moved_[inner] = to;
    }
    return to;
  }

  Graph& graph_;
  const std::span<const NodeId> nodes_;
  IdMap<RegionId, uint32_t> all_, here_;  // numbers of nodes in a region, nested ones included
  std::unordered_map<RegionId, RegionId> moved_;
};

}  // namespace

bool needs_region(const Graph& graph, const CheckpointSegment& segment) {
  return segment.regions.size() != 1 || graph.region(segment.regions[0]).kind != RegionKind::kCheckpoint;
}

RegionId CheckpointRegions::add(RegionId parent, StringId name, std::string_view class_name) {
  if (calls_.empty()) {
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const Region& other = graph_.region(RegionId(i));
      if (other.kind == RegionKind::kCheckpoint) ++calls_[{other.parent, other.name}];
    }
    calls_[{Graph::kRootRegion, StringId()}] = 0;  // initialized
  }
  Region region;
  region.kind = RegionKind::kCheckpoint;
  region.parent = parent;
  region.name = name;
  region.class_name = graph_.intern(class_name);
  region.call = calls_[{parent, name}]++;
  return graph_.add_region(region);
}

RegionId CheckpointRegions::wrap_regions(const CheckpointLevel& level) {
  const CheckpointSegment& segment = *level.segment;
  const RegionId parent = graph_.region(segment.regions[0]).parent;
  const RegionId checkpoint = add(parent, graph_.intern(segment.name), "");
  for (const RegionId r : segment.regions) mutable_region(graph_, r).parent = checkpoint;
  if (segment.regions.size() == 1) return checkpoint;
  // Nodes between its regions: nodes of the parent, and nodes of other regions in it.
  for (const NodeId n : level.nodes) {
    RegionId r = graph_.node(n).region;
    if (r == parent) {
      mutable_node(graph_, n).region = checkpoint;
      continue;
    }
    while (r.valid() && r != checkpoint && graph_.region(r).parent != parent) r = graph_.region(r).parent;
    if (r.valid() && r != checkpoint) mutable_region(graph_, r).parent = checkpoint;
  }
  return checkpoint;
}

RegionId CheckpointRegions::wrap_nodes(const CheckpointLevel& level) {
  RunOfNodes run(graph_, level.nodes);
  const RegionId around = run.common_region();
  const RegionId checkpoint = add(around, graph_.intern(level.segment->name), "");
  run.move(around, checkpoint);
  return checkpoint;
}

}  // namespace shadowgraph
