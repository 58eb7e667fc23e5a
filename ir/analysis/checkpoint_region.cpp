#include "shadowgraph/analysis/recompute_regions.h"

namespace shadowgraph {

// Parents come before their children, so one walk hands down the answer, however deep regions nest.
IdMap<RegionId, RegionId> recompute_regions(const Graph& graph) {
  IdMap<RegionId, RegionId> regions;
  regions.reserve(graph.region_count());
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const RegionId id(i);
    const RegionId parent = graph.region(id).parent;  // has a smaller index
    regions[id] = is_recompute_region(graph, id) ? id : parent.valid() ? std::as_const(regions)[parent] : RegionId();
  }
  return regions;
}

}  // namespace shadowgraph
