// An assignment problem in the words of formats that know less.
#pragma once

#include <cstdint>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

// Costs multiplied out, every edge between two nodes with a matrix of its own, one interval a node: nodes with more and
// edges with usages get further nodes, behind the others, that are tied to them. Throws Error if a sum has more than 64
// bits.
AssignmentProblem plain(const AssignmentProblem& given);

// More than all that is allowed can cost together. Throws Error if that is too large to be a cost.
int64_t forbidding_cost(const AssignmentProblem& problem);

}  // namespace shadowgraph
