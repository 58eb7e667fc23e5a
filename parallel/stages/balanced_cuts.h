// Finds where to cut forward so that the slowest stage is quickest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shadowgraph {

// `costs`: of each position, not negative. `places`: positions that may be cut at, rising, and what a cut there sends.
struct CutPlace {
  int32_t position = 0;
  int64_t bytes = 0;
};
// Returns stages - 1 rising positions. The greatest sum between two cuts is least; within a hundredth of that bytes are
// least, and then the squares of the sums. There are at least so many places. Costs stages x places^2.
std::vector<int32_t> balanced_cuts(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages);

// That least of greatest sums.
double least_greatest_sum(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages);

}  // namespace shadowgraph
