// Calls a kernel. Internal to kernels/replay.
#pragma once

#include <ATen/Parallel.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

// Below so many elements, threads cost more than they save; eager's grain.
constexpr int64_t kElementsOfAThread = 32768;

// Says whether strides are those that at::empty gives, also where they do not matter.
inline bool are_default_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != expected) return false;
    expected *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

// `data`: the first element of each operand.
inline void launch(KernelFunction function, const KernelPlan& plan, void* const* data, const int64_t* scalars) {
  const int64_t work = plan.range * plan.row_work;
  if (work <= kElementsOfAThread || at::get_num_threads() == 1 || at::in_parallel_region()) {
    if (plan.range > 0) function(data, plan.sizes.data(), plan.strides.data(), scalars, 0, plan.range);
    return;
  }
  const int64_t grain = std::max<int64_t>(kElementsOfAThread / plan.row_work, 1);
  at::parallel_for(0, plan.range, grain, [&](int64_t begin, int64_t end) {
    function(data, plan.sizes.data(), plan.strides.data(), scalars, begin, end);
  });
}

}  // namespace shadowgraph
