// Calls a kernel. Internal to kernels/replay.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <span>

#include "shadowgraph/kernels/backend.h"
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

// `data`: the first element of each operand. Returns false if an index is out of range.
inline bool launch(const KernelBackend& backend, KernelFunction function, const KernelPlan& plan,
                   std::span<void* const> data, std::span<const int64_t> scalars) {
  if (plan.range <= 0) return true;
  return backend.launch(function, {.data = data,
                                   .sizes = plan.sizes,
                                   .strides = plan.strides,
                                   .scalars = scalars,
                                   .range = plan.range,
                                   .row_work = plan.row_work});
}

}  // namespace shadowgraph
