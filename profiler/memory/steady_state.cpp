#include "shadowgraph/profile/steady_state.h"

#include <algorithm>
#include <limits>

#include "profiler/program_costs.h"
#include "shadowgraph/profile/storage_kinds.h"

namespace shadowgraph {

std::optional<SteadyState> steady_state(const Graph& graph, const MemoryTimeline& timeline) {
  const uint32_t steps = timeline.steps();
  // Gradients that stay are added to from the second step on, which the first does not show.
  const bool gradients_stay = graph.metadata.other.contains("zero_grads");
  if (steps == 0 || gradients_stay || graph.metadata.step == TrainingStep::kSteady) return std::nullopt;
  IdMap<NodeId, uint32_t> place;
  for (uint32_t step = 0; step < steps; ++step) place[timeline.node(step)] = step;
  struct Kept {
    uint32_t made;
    StorageId storage;
  };
  std::vector<Kept> kept;
  for (const StorageId id : timeline.alive_at(steps - 1, std::numeric_limits<size_t>::max())) {
    if (timeline.kind(id) != StorageKind::kOptimizerState || existed_before(graph, graph.storage(id))) continue;
    kept.push_back({place[graph.storage(id).born], id});
  }
  if (kept.empty()) return std::nullopt;
  std::ranges::sort(kept, {}, &Kept::made);

  BytesByKind later{};  // of what the recorded step has yet to make
  int64_t all_later = 0;
  const auto add = [&](StorageId id, int sign) {
    const int64_t bytes = sign * graph.storage(id).bytes;
    later[static_cast<size_t>(timeline.kind(id))] += bytes;
    all_later += bytes;
  };
  for (const Kept& each : kept) add(each.storage, 1);
  SteadyState steady;
  size_t made = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    for (; made < kept.size() && kept[made].made <= step; ++made) add(kept[made].storage, -1);
    if (step > 0 && timeline.total(step) + all_later <= steady.peak.bytes) continue;
    const NodeId node = timeline.node(step);
    steady.peak = {.bytes = timeline.total(step) + all_later,
                   .step = step,
                   .node = node,
                   .phase = graph.node(node).phase,
                   .by_kind = timeline.live(step)};
    for (size_t kind = 0; kind < later.size(); ++kind) steady.peak.by_kind[kind] += later[kind];
  }
  for (const Kept& each : kept) {
    if (each.made > steady.peak.step) steady.kept.push_back(each.storage);
  }
  return steady;
}

}  // namespace shadowgraph
