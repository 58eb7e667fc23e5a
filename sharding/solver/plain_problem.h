// Writes an assignment problem in the words of formats that know less.
#pragma once

#include <cstdint>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

// Multiplies costs out and gives every edge between two nodes a matrix of its own, every node one interval. Nodes with
// more intervals and edges with usages get further nodes, behind the others and tied to them. Throws Error if a sum has
// more than 64 bits.
AssignmentProblem plain(const AssignmentProblem& given);

// Returns a cost above all that is allowed together. Throws Error if that is too large to be a cost.
int64_t forbidding_cost(const AssignmentProblem& problem);

}  // namespace shadowgraph
