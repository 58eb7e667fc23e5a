// Prices of usages by points of time (Lagrange multipliers).
#pragma once

#include <vector>

#include "sharding/solver/dual.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

// Makes sums and differences of them exact.
void round_prices(std::vector<double>& prices);

// What the limit would cost, not less than exact sums: a bound at prices is one of the problem less that.
double worth_of(const std::vector<double>& prices, double limit);

// Costs of the dual are those of the model and, not more than exact sums, of usages at prices. States that are `out` (by
// variable; empty: none of it) cost `out_cost` more.
void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out = {}, double out_cost = 0);

}  // namespace shadowgraph
