#include "profiler/time/fitted_rates.h"

#include <algorithm>

namespace shadowgraph {

void fit_rates(std::vector<TimedCall> calls, ClassRates& into) {
  constexpr double kShort = 1e-4;       // seconds
  constexpr double kOfLeast = 0.8;      // of the least time, what is fixed
  constexpr double kLeastBeyond = 0.1;  // of a call's time, what its work takes at least
  const auto least = std::ranges::min_element(calls, {}, &TimedCall::seconds);
  if (calls.size() > 1 && least->seconds < kShort) into.fixed = least->seconds * kOfLeast;
  std::ranges::sort(calls, [](const TimedCall& a, const TimedCall& b) {
    return a.flops != b.flops ? a.flops < b.flops : a.bytes < b.bytes;
  });
  for (const TimedCall& one : calls) {
    const double seconds = std::max(one.seconds - into.fixed, one.seconds * kLeastBeyond);
    auto& points = one.flops > 0 ? into.compute : into.memory;
    const double work = one.flops > 0 ? one.flops : one.bytes;
    if (points.empty() || work > points.back().work) points.push_back({work, work / seconds});
  }
}

}  // namespace shadowgraph
