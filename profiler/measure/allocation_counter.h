// Counts bytes allocated and freed by libtorch's CPU allocator on this thread, through the profiler's memory callback.
//
//     const auto counter = std::make_shared<AllocationCounter>();
//     const c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, counter);
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>

namespace shadowgraph {

class AllocationCounter final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    live += bytes;
    most = std::max(most, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0;  // bytes
  int64_t most = 0;
};

}  // namespace shadowgraph
