// The regions that segments of a checkpoint become. Internal to passes/checkpoint.
#pragma once

#include <map>
#include <utility>

#include "passes/checkpoint/checkpoint_plan.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Whether a segment has to become a region: it is none of kind checkpoint already.
bool needs_region(const Graph& graph, const CheckpointSegment& segment);

// Regions are added behind those that they hold: put_parents_first() comes after.
class CheckpointRegions {
 public:
  explicit CheckpointRegions(Graph& graph) : graph_(graph) {}

  // A region of kind checkpoint, numbered among those of this name in the same place.
  RegionId add(RegionId parent, StringId name, std::string_view class_name);
  // Puts the segment's regions, and what lies between them, into a new one. Returns that.
  RegionId wrap_regions(const CheckpointLevel& level);
  // Puts the nodes of a segment that is a run of nodes into a new one. Modules that begin before it or end after it are
  // parted in two, and composite operators are dissolved there. Outer segments come first. Returns that.
  RegionId wrap_nodes(const CheckpointLevel& level);

 private:
  Graph& graph_;
  std::map<std::pair<RegionId, StringId>, uint32_t> calls_;
};

}  // namespace shadowgraph
