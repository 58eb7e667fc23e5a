#include "passes/structure/region_order.h"

#include <vector>

#include "ir/records.h"

namespace shadowgraph {

void put_parents_first(Graph& graph) {
  const uint32_t count = graph.region_count();
  std::vector<Region> ordered;
  ordered.reserve(count);
  std::vector<RegionId> moved(count);
  std::vector<RegionId> chain;
  for (uint32_t i = 0; i < count; ++i) {
    // Climbs to the first ancestor that has its place, and comes down again giving places.
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

}  // namespace shadowgraph
