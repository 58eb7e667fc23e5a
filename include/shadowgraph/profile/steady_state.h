// The peak of the steps that follow a training step's first.
//
// The first step makes the optimizer's state after backward, where there is room for it again. Later steps hold it from
// their beginning, so their peak is higher. It follows from the first step's record: what the optimizer made and keeps
// counts from the first node on.
#pragma once

#include <optional>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/timeline.h"

namespace SHADOWGRAPH_API shadowgraph {

struct SteadyState {
  MemoryPeak peak;
  std::vector<StorageId> kept;  // held at the peak from the step before, though the recorded step makes them later
};

// Empty if the record is of the steady state already, or makes no optimizer state. Empty, too, if gradients stay
// (zero_grads): later steps add to them, which the first does not show; capture one. Linear.
std::optional<SteadyState> steady_state(const Graph& graph, const MemoryTimeline& timeline);

}  // namespace shadowgraph
