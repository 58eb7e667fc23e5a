// Refuses graphs whose sizes are so absurd that no sum of them is right. Internal to the checkpoint passes.
#pragma once

#include <cstdint>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Plans are weighed by sums of bytes and of costs, a few times the total of each.
constexpr int64_t kMostCountable = int64_t{1} << 58;

// Throws Error if all storages together have more bytes.
void check_countable(const Graph& graph);

}  // namespace shadowgraph
