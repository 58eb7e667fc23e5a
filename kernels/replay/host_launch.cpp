// Runs kernels on this process's threads: what a back end does that has no launch of its own.
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "kernels/replay/launch.h"
#include "shadowgraph/kernels/backend.h"

namespace shadowgraph {
bool KernelBackend::launch(KernelFunction kernel, const KernelLaunch& launch) const {
  int64_t wrong = 0;
  c10::SmallVector<void*, 40> data(launch.data.begin(), launch.data.end());
  data.push_back(&wrong);
  const auto run = [&](int64_t begin, int64_t end) {
    kernel(data.data(), launch.sizes.data(), launch.strides.data(), launch.scalars.data(), begin, end);
  };
  if (launch.range * launch.row_work <= kElementsOfAThread || at::get_num_threads() == 1 || at::in_parallel_region()) {
    run(0, launch.range);
  } else {
    at::parallel_for(0, launch.range, std::max<int64_t>(kElementsOfAThread / launch.row_work, 1), run);
  }
  return wrong == 0;
}

}  // namespace shadowgraph
