// Regions of a graph in another order, or under new parents.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "passes/recompute/checkpoint_plan.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Renumbers regions so that parents come before what they hold, as a graph wants it; otherwise they keep their order.
// Call it after regions were given parents that were made later. Ids of regions held elsewhere are stale. Linear.
void put_parents_first(Graph& graph);

// Regions as the pass `checkpoint` names them. Internal to passes/recompute.

// "layers.12" is number 12 of "layers", "encoder_layer_3" number 3 of "encoder_layer". "": it has no number.
std::string_view family_of(std::string_view path);

std::string name_of_region(const Graph& graph, RegionId region);

// Returns the regions that may be named, in the order in which the program entered them. These are modules, scopes and
// checkpoints with forward nodes inside, outside of what is computed again.
std::vector<RegionId> nameable_regions(const Graph& graph);

// regions_named() of patterns of which one matches. Throws Error, with names that there are.
std::vector<RegionId> regions_that_match(const Graph& graph, const std::string& patterns);

// The regions that segments of a checkpoint become. Internal to passes/recompute.

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
