// Why nothing fits, by HiGHS: the pins that contradict each other or the limit, none of which can be spared; the least
// limit that something would fit in; or what ties nodes to one another where no limit is in the way.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/sharding/solver.h"
#include "sharding/solver/highs_library.h"

namespace shadowgraph {

struct ConflictRequest {
  const HighsLibrary& library;
  int threads = 1;
  double time_limit = 0;  // seconds
  const std::vector<AssignmentPin>& pins;
};

// `problem` has no feasible choice.
std::string conflict_by_highs(const AssignmentProblem& problem, const ConflictRequest& request);

}  // namespace shadowgraph
