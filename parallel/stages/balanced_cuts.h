// Balances pipeline stages: cuts the forward so that the slowest stage is as fast as possible.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shadowgraph {

// A position at which the forward may be cut, and the bytes sent there.
struct CutPlace {
  int32_t position = 0;
  int64_t bytes = 0;
};
// Splits `costs` (per position, not negative) into `stages` ranges and returns the stages - 1 cut positions, ascending.
// Minimizes the largest sum of costs; within one percent of that, the bytes sent, and then the sum of squares. `places`
// must be sorted and have at least stages - 1 elements. O(stages * places^2).
std::vector<int32_t> balanced_cuts(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages);

// Returns the smallest possible largest sum.
double min_max_sum(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages);

}  // namespace shadowgraph
