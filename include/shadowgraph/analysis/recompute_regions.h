// Activation checkpoints in a graph: which nodes are computed again in backward.
//
//     r5 = checkpoint "block" in r1                      in forward: what was run without being kept
//     r9 = checkpoint "block" "recompute" in r0          in backward: the same nodes again, as far as they are needed
//     n77: %90 = aten::mm(...) | r9 backward of n12      each linked to the node that it repeats
//
// Both a capture of shadowgraph::checkpoint (shadowgraph/checkpoint.h) and the pass `checkpoint`
// (shadowgraph/passes/checkpoint.h) write this. Regions inside are repeated too, modules with the paths they have in
// forward.
#pragma once

#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

constexpr std::string_view kRecomputeClass = "recompute";

// This very region; not those inside.
inline bool is_recompute_region(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  return region.kind == RegionKind::kCheckpoint && graph.text_or_empty(region.class_name) == kRecomputeClass;
}

// By region: the innermost recompute region that it is or lies in; invalid outside all. Linear in regions.
IdMap<RegionId, RegionId> recompute_regions(const Graph& graph);

}  // namespace shadowgraph
