// Makes the reductions that a limit on usages allows.
#pragma once

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Drops what no neighbour allows, what uses more than the limit leaves when all others use their least, and what is
// never better. A state is never better if another one costs and uses no more. Variables that follow from a neighbour
// become part of it. Returns false if nothing is left.
bool simplify_within_limit(const AssignmentProblem& problem, PairwiseModel& model);
// Does the same without what a limit alone forbids: whatever the limit is, no better choice of costs and usages is
// lost.
bool simplify_for_any_limit(const AssignmentProblem& problem, PairwiseModel& model);

}  // namespace shadowgraph
