// Says why nothing fits, with HiGHS' help. It gives pins that contradict each other or the limit, none of which can be
// spared, and the least limit that something would fit in. Where no limit is in the way, it gives what ties nodes to
// one another.
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

// `problem` must have no feasible choice.
std::string conflict_by_highs(const AssignmentProblem& problem, const ConflictRequest& request);

}  // namespace shadowgraph
