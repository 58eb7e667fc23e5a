// A problem's costs as the pairwise model that the solver reduces.
#pragma once

#include <optional>

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/pairwise.h"

namespace shadowgraph {

// Without the limit, with the pins. Costs of more than 2^45 count as that: bounds stay bounds, sums stay exact in
// doubles, and choices are weighed by evaluate().
PairwiseModel pairwise_model(const AssignmentProblem& problem);

// The problem with the costs forbidden that are each more than the dearest choice without such costs: other formats
// have no word for what is forbidden, and write such costs. Nothing if there are none.
std::optional<AssignmentProblem> without_costs_above_all(const AssignmentProblem& problem);

}  // namespace shadowgraph
