// What a module trades: bytes that dropping results of its operators frees, for the time that making them again takes.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace shadowgraph {

// One operator of a module: what dropping its result frees, and what making it again takes.
struct DroppedOperator {
  double bytes = 0, milliseconds = 0;
};

struct TradeOff {
  double bytes = 0, milliseconds = 0;
  std::vector<double> slopes, intercepts, breakpoints;
  std::vector<std::pair<double, double>> curve;  // part of the bytes dropped, part of the time taken
};

// Returns a convex function of bytes dropped. Operators that take the least time for their bytes are dropped first.
// While there are too many corners, the one nearest to the line through its neighbours goes.
TradeOff trade_off(std::vector<DroppedOperator> operators, size_t segments);

}  // namespace shadowgraph
