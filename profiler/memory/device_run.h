// Runs a graph's steps through an allocator and keeps the allocator as it is after them.
#pragma once

#include <span>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/profile/caching_allocator.h"
#include "shadowgraph/profile/device_memory.h"

namespace shadowgraph {

struct DeviceRun {
  DeviceMemory memory;
  CachingAllocator allocator;  // tags are StorageId indices; kNoStorage for scratch and workspaces

  static constexpr uint32_t kNoStorage = 0xFFFFFFFFU;
};

// Throws OutOfMemoryError, naming the node. With `history` the allocator notes every event.
DeviceRun run_on_device(const ProgramCosts& costs, const DeviceMemoryOptions& options, bool history);

// The most bytes of a stretch of the graph, and those reserved after it.
struct AllocatorPeaks {
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t reserved_after = 0;
};
// Runs the graph once, in stretches that end at these steps; what follows the last step belongs to the last stretch.
// Throws OutOfMemoryError.
std::vector<AllocatorPeaks> allocator_peaks(const ProgramCosts& costs, const DeviceMemoryOptions& options,
                                            std::span<const uint32_t> ends);

}  // namespace shadowgraph
