// Gives a problem's costs to the pairwise model that the solver reduces.
#pragma once

#include <optional>

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Leaves the limit out and takes the pins in. Costs of more than 2^45 count as 2^45: bounds stay bounds, sums stay
// exact in doubles, and choices are weighed by evaluate().
PairwiseModel pairwise_model(const AssignmentProblem& problem);

// Forbids costs that are each more than the dearest choice without such costs. Formats without a word for what is
// forbidden write such costs instead. Returns nothing if there are none.
std::optional<AssignmentProblem> without_costs_above_all(const AssignmentProblem& problem);

}  // namespace shadowgraph
