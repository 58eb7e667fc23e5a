// Gives the bytes of a limited problem a price, so that a problem without a limit bounds it (Lagrange multipliers).
//
// Each point of time has a price, 0 or above, and a choice pays it for each byte that it uses there. A choice that
// keeps within the limit pays at most worth_of(prices, limit). So the least priced cost, less that worth, is at or
// below the cost of every choice that keeps within. This holds for any prices; good ones make the bound high.
//
// limited.cpp searches for prices, and branches.cpp takes them over. The functions round such that the bound holds for
// exact sums, too. set_prices() takes time linear in the states and pairs that use anything.
#pragma once

#include <vector>

#include "sharding/solver/dual.h"
#include "sharding/solver/pairwise.h"
#include "sharding/solver/usage.h"

namespace shadowgraph {

// Rounds prices down to multiples of a power of two, about 2^-48 of their sum. Sums of stretches are then exact in
// doubles, and a usage's price is the difference of two of them.
void round_prices(std::vector<double>& prices);

// Returns what a choice pays that uses all of the limit at every point, rounded up.
double worth_of(const std::vector<double>& prices, double limit);

// Sets the dual's costs to model cost plus price times usage, rounded down. `out` marks states that a branch rules
// out: they cost `out_cost` more, since the dual takes no infinite costs. It has one list for each variable (empty:
// none of its states), or none at all.
void set_prices(DualAscent& dual, const PairwiseModel& model, const UsageModel& usage,
                const std::vector<double>& prices, const std::vector<std::vector<bool>>& out = {}, double out_cost = 0);

}  // namespace shadowgraph
