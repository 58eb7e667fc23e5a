// Finds which node belongs to which segment of a checkpoint, and how segments nest.
//
// Policies name segments by regions (modules), the chain by first and last node. Both become levels: a segment, the
// one around it, its nodes. Segments that cross are refused, for a node can be recomputed with one of them alone.
// One walk over the nodes for each of the two forms, times the depth of nesting.
#include <fmt/format.h>

#include <algorithm>

#include "passes/checkpoint/checkpoint_plan.h"
#include "shadowgraph/analysis/recompute_regions.h"

namespace shadowgraph {
namespace {

std::string_view text_of_name(const Graph& graph, RegionId region) {
  return graph.text_or_empty(graph.region(region).name);
}

[[noreturn]] void refuse_segment(const CheckpointSegment& segment, const std::string& what) {
  throw GraphEditError(fmt::format("cannot checkpoint segment '{}': {}", segment.name, what));
}
[[noreturn]] void refuse_overlap(const CheckpointSegment& a, const CheckpointSegment& b) {
  throw GraphEditError(fmt::format("segments '{}' and '{}' overlap", a.name, b.name));
}

// Nodes of forward, without what is computed again in it.
class ForwardNodes {
 public:
  explicit ForwardNodes(const Graph& graph) : graph_(graph), again_(recompute_regions(graph)) {}
  bool contains(NodeId n) const {
    return graph_.node(n).phase == Graph::kForward && !graph_.is_placeholder(n) &&
           !again_[graph_.node(n).region].valid();
  }

 private:
  const Graph& graph_;
  const IdMap<RegionId, RegionId> again_;
};

}  // namespace

// Segments by regions form a tree, as regions do. A node belongs to the innermost segment around its region, and nodes
// between the regions of one segment belong to it, too.
class CheckpointPlan::SegmentTree {
 public:
  SegmentTree(CheckpointPlan& plan, std::span<const CheckpointSegment> segments)
      : plan_(plan), graph_(plan.graph_), levels_(plan.levels_), segments_(segments), forward_(plan.graph_) {}

  void run() {
    find_segments_of_regions();
    nest();
    find_extents();
    assign_nodes();
  }

 private:
  struct Extent {
    NodeId first, last;
  };

  // Regions of one segment must be siblings: what lies between them is then called from the same place.
  void find_segments_of_regions() {
    for (size_t i = 0; i < segments_.size(); ++i) {
      const CheckpointSegment& segment = segments_[i];
      if (segment.regions.empty()) refuse_segment(segment, "it has no regions");
      for (const RegionId region : segment.regions) {
        if (region.index >= graph_.region_count() || region == Graph::kRootRegion) {
          refuse_segment(segment, "there is no such region");
        }
        if (graph_.region(region).parent != graph_.region(segment.regions[0]).parent) {
          refuse_segment(segment, fmt::format("'{}' and '{}' are not called from the same place",
                                              text_of_name(graph_, segment.regions[0]), text_of_name(graph_, region)));
        }
        if (segment_at_[region] >= 0) {
          refuse_segment(segment, fmt::format("region '{}' is in another segment, or twice in this one",
                                              text_of_name(graph_, region)));
        }
        segment_at_[region] = static_cast<int32_t>(i);
      }
    }
  }

  // Finds the innermost segment by region; parents have smaller indices.
  void nest() {
    IdMap<RegionId, int32_t> around(-1);
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId id(i);
      around[id] = std::as_const(by_region_)[graph_.region(id).parent];
      const int32_t own = std::as_const(segment_at_)[id];
      by_region_[id] = own >= 0 ? own : around[id];
    }
    levels_.resize(segments_.size());
    for (size_t i = 0; i < segments_.size(); ++i) {
      levels_[i].segment = &segments_[i];
      levels_[i].outer = around[segments_[i].regions[0]];
    }
    for (CheckpointLevel& level : levels_) {
      for (int32_t outer = level.outer; outer >= 0; outer = levels_[size_t(outer)].outer) ++level.depth;
    }
  }

  // A segment reaches from the first to the last node of its regions.
  void find_extents() {
    extents_.resize(segments_.size());
    for (const NodeId n : graph_.nodes()) {
      if (!forward_.contains(n)) continue;
      const int32_t level = std::as_const(by_region_)[graph_.node(n).region];
      plan_.level_of_[n] = level;
      for (int32_t l = level; l >= 0; l = levels_[size_t(l)].outer) {
        Extent& extent = extents_[size_t(l)];
        if (!extent.first.valid()) extent.first = n;
        extent.last = n;
      }
    }
    for (size_t i = 0; i < segments_.size(); ++i) {
      if (segments_[i].regions.size() > 1 && extents_[i].first.valid()) {
        begins_[extents_[i].first].push_back(static_cast<int32_t>(i));
      }
    }
  }

  void assign_nodes() {
    for (const NodeId n : graph_.nodes()) {
      open_those_that_begin(n);
      if (forward_.contains(n)) {
        int32_t& level = plan_.level_of_[n];
        if (!open_.empty() && !plan_.is_within(level, open_.back())) {
          const int32_t around = open_.back();
          if (level != levels_[size_t(around)].outer)
            refuse_overlap(segments_[size_t(around)], segments_[size_t(level)]);
          level = around;
        }
        for (int32_t l = level; l >= 0; l = levels_[size_t(l)].outer) levels_[size_t(l)].nodes.push_back(n);
      }
      while (!open_.empty() && extents_[size_t(open_.back())].last == n) open_.pop_back();
    }
  }

  // A segment of several regions also takes the nodes between them, so it is opened at its first node and closed at its
  // last. One that begins inside another must end inside it.
  void open_those_that_begin(NodeId n) {
    const auto found = begins_.find(n);
    if (found == begins_.end()) return;
    std::sort(found->second.begin(), found->second.end(),
              [&](int32_t a, int32_t b) { return levels_[size_t(a)].depth < levels_[size_t(b)].depth; });
    for (const int32_t begun : found->second) {
      if (!open_.empty() && !plan_.is_within(begun, open_.back())) {
        refuse_overlap(segments_[size_t(open_.back())], segments_[size_t(begun)]);
      }
      open_.push_back(begun);
    }
  }

  CheckpointPlan& plan_;
  const Graph& graph_;
  std::vector<CheckpointLevel>& levels_;
  const std::span<const CheckpointSegment> segments_;
  const ForwardNodes forward_;
  IdMap<RegionId, int32_t> segment_at_{-1};                  // of regions that a segment names
  IdMap<RegionId, int32_t> by_region_{-1};                   // the innermost segment
  std::vector<Extent> extents_;                              // by segment
  std::unordered_map<NodeId, std::vector<int32_t>> begins_;  // segments of several regions
  std::vector<int32_t> open_;                                // those around the current node, inner ones last
};

void CheckpointPlan::assign_levels(std::span<const CheckpointSegment> segments) { SegmentTree(*this, segments).run(); }

// Segments by nodes nest by their ranges. Where several begin at the same node, the one that ends last is the outer
// one.
void CheckpointPlan::assign_ranges(std::span<const CheckpointSegment> segments) {
  const ForwardNodes forward(graph_);
  std::unordered_map<NodeId, std::vector<int32_t>> begins;
  levels_.resize(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const CheckpointSegment& segment = segments[i];
    for (const NodeId end : {segment.first, segment.last}) {
      if (!end.valid() || end.index >= graph_.node_capacity() || graph_.is_erased(end))
        refuse_segment(segment, "there is no such node");
      if (!forward.contains(end)) refuse_segment(segment, "it begins or ends with a node that is not of forward");
    }
    if (graph_.is_before(segment.last, segment.first)) refuse_segment(segment, "its last node comes before its first");
    if (!segment.regions.empty()) refuse_segment(segment, "it has both nodes and regions");
    levels_[i].segment = &segment;
    begins[segment.first].push_back(static_cast<int32_t>(i));
  }
  std::vector<int32_t> open;  // inner ones last
  for (const NodeId n : graph_.nodes()) {
    if (const auto found = begins.find(n); found != begins.end()) {
      std::stable_sort(found->second.begin(), found->second.end(), [&](int32_t a, int32_t b) {
        return graph_.is_before(segments[size_t(b)].last, segments[size_t(a)].last);
      });
      for (const int32_t begun : found->second) {
        if (!open.empty()) {
          const CheckpointSegment& around = segments[size_t(open.back())];
          const CheckpointSegment& inner = segments[size_t(begun)];
          if (graph_.is_before(around.last, inner.last) || (around.first == inner.first && around.last == inner.last)) {
            refuse_overlap(around, inner);
          }
          levels_[size_t(begun)].outer = open.back();
        }
        levels_[size_t(begun)].depth = static_cast<int32_t>(open.size());
        open.push_back(begun);
      }
    }
    if (forward.contains(n) && !open.empty()) {
      level_of_[n] = open.back();
      for (const int32_t level : open) levels_[size_t(level)].nodes.push_back(n);
    }
    while (!open.empty() && segments[size_t(open.back())].last == n) open.pop_back();
  }
}

}  // namespace shadowgraph
