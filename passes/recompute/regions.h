// Regions for checkpoint segments: naming, creation and order. Internal to passes/recompute.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "passes/recompute/recompute_schedule.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Renumbers regions so that parents come before their children, as a graph requires, and otherwise keeps their order.
// Call it after regions got parents that were created later. Invalidates all other copies of region ids. Linear.
void put_parents_first(Graph& graph);

// Returns a path without its number: "layers" for "layers.12", "encoder_layer" for "encoder_layer_3"; otherwise "".
std::string_view family_of(std::string_view path);

std::string name_of_region(const Graph& graph, RegionId region);

// Returns the regions that can be selected by name, in the order in which the program entered them: modules, scopes and
// checkpoints that contain forward nodes and are not inside a recomputed region.
std::vector<RegionId> nameable_regions(const Graph& graph);

// As regions_named(), but throws Error with a list of available names if nothing matches.
std::vector<RegionId> regions_that_match(const Graph& graph, const std::string& patterns);

// Returns whether a new region is needed for a segment, because it is not a checkpoint region already.
bool needs_region(const Graph& graph, const CheckpointSegment& segment);

// Appends regions after those that they contain: call put_parents_first() afterwards.
class CheckpointRegions {
 public:
  explicit CheckpointRegions(Graph& graph) : graph_(graph) {}

  // Adds a region of kind checkpoint, numbered among those of this name in the same parent.
  RegionId add(RegionId parent, StringId name, std::string_view class_name);
  // Moves the segment's regions, and everything between them, into a new region. Returns that.
  RegionId wrap_regions(const CheckpointLevel& level);
  // Moves the nodes of a segment that is a range of nodes into a new region. Modules that cross its borders are split
  // in two, and composite operators there are dissolved. Outer segments come first. Returns the region.
  RegionId wrap_nodes(const CheckpointLevel& level);

 private:
  Graph& graph_;
  std::map<std::pair<RegionId, StringId>, uint32_t> calls_;
};

}  // namespace shadowgraph
