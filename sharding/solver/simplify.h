// Reductions that a limit on usages allows.
#pragma once

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Drops what no neighbour allows, what uses more than is left by the least that all others need, and what another state
// is never worse than in cost and usage; variables that follow from a neighbour become part of it. False if nothing is
// left.
bool simplify_within_limit(const AssignmentProblem& problem, PairwiseModel& model);
// The same, but for what a limit alone forbids: whatever the limit is, no better choice of costs and usages is lost.
bool simplify_for_any_limit(const AssignmentProblem& problem, PairwiseModel& model);

}  // namespace shadowgraph
