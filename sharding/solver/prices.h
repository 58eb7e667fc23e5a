// Works with prices of usages by points of time (Lagrange multipliers).
#pragma once

#include <vector>

#include "sharding/solver/dual.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

// Rounds prices down so that their sums and differences are exact.
void round_prices(std::vector<double>& prices);

// Returns what using all of the limit costs at these prices, rounded up. A bound at prices, less that, is a bound of
// the problem.
double worth_of(const std::vector<double>& prices, double limit);

// Sets the dual's costs to model cost plus price times usage, rounded down. States marked in `out` cost `out_cost`
// more; it has one list for each variable (empty: none of its states), or none at all.
void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out = {}, double out_cost = 0);

}  // namespace shadowgraph
