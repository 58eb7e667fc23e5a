// Spends what the stages of a rank leave of its memory.
#pragma once

#include <vector>

#include "parallel/plan/stage_split.h"
#include "shadowgraph/parallel/schedule.h"

namespace shadowgraph {

// split() gives each stage of a rank a share of its memory beforehand. Where layers are few and large, each share is too
// small for one more of them, while all together are not. Here they go to layers that then need not be computed again:
// those first that save most seconds for a byte.
void keep_more(const LayoutChains& chains, const SplitLimits& limits, const PipelineSchedule& schedule,
               std::vector<StageUnits>& stages);

}  // namespace shadowgraph
