// What to change where no plan fits, smallest change first.
#pragma once

#include <string>

#include "parallel/plan/planner.h"

namespace shadowgraph {

// A text of what does not fit and of each change that was found. Every change is a plan that was simulated and fits.
std::string what_would_fit(const StepSource& source, const ClusterRequest& request, KeptTables& kept);

// The same step by a number of tokens, in sequences of another length: at least one sample.
ClusterRequest with_sequence(ClusterRequest request, int64_t sequence);

}  // namespace shadowgraph
