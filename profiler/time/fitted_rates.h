// Makes the rates of a class of kernels from single calls of it that were timed.
#pragma once

#include <vector>

#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph {

struct TimedCall {
  double flops = 0;  // of float32's, if it computes; otherwise bytes count
  double bytes = 0;
  double seconds = 0;
};

// The least time of a class is its fixed time, if it is short. The others give rates of what is beyond that. Dtypes'
// factors are left alone.
void fit_rates(std::vector<TimedCall> calls, ClassRates& into);

}  // namespace shadowgraph
