#include "profiler/recompute/trade_off.h"

#include <algorithm>

namespace shadowgraph {

TradeOff trade_off(std::vector<DroppedOperator> operators, size_t segments) {
  TradeOff result;
  for (const DroppedOperator& one : operators) {
    result.bytes += one.bytes;
    result.milliseconds += one.milliseconds;
  }
  if (!(result.bytes > 0) || !(result.milliseconds > 0)) return result;
  std::erase_if(operators, [](const DroppedOperator& one) { return !(one.bytes > 0); });
  std::stable_sort(operators.begin(), operators.end(), [](const DroppedOperator& a, const DroppedOperator& b) {
    return a.milliseconds * b.bytes < b.milliseconds * a.bytes;
  });
  std::vector<std::pair<double, double>> points{{0, 0}};
  double bytes = 0, milliseconds = 0;
  for (const DroppedOperator& one : operators) {
    bytes += one.bytes;
    milliseconds += one.milliseconds;
    points.emplace_back(bytes / result.bytes, milliseconds / result.milliseconds);
  }
  points.back() = {1, 1};  // operators without bytes take time, too
  result.curve = points;
  const auto above = [&](size_t i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x, y] = points[i];
    const auto& [x1, y1] = points[i + 1];
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y : 0.0;
  };
  while (points.size() > segments + 1) {
    size_t least = 1;
    for (size_t i = 1; i + 1 < points.size(); ++i) {
      if (above(i) < above(least)) least = i;
    }
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(least));
  }
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const auto& [x0, y0] = points[i];
    const auto& [x1, y1] = points[i + 1];
    if (!(x1 > x0)) continue;
    const double slope = (y1 - y0) / (x1 - x0);
    if (result.breakpoints.empty()) result.breakpoints.push_back(x0);
    result.slopes.push_back(slope);
    result.intercepts.push_back(y0 - slope * x0);
    result.breakpoints.push_back(x1);
  }
  return result;
}

}  // namespace shadowgraph
