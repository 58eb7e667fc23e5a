// A graph's steps through an allocator, and the allocator after them.
#pragma once

#include <span>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/profile/device_memory.h"

namespace shadowgraph {

struct DeviceRun {
  DeviceMemory memory;
  CachingAllocator allocator;  // tags are StorageId indices; kNoStorage for scratch and workspaces

  static constexpr uint32_t kNoStorage = 0xFFFFFFFFU;
};

// Throws OutOfMemoryError, naming the node. `history`: the allocator notes every event.
DeviceRun run_on_device(const ProgramCosts& costs, const DeviceMemoryOptions& options, bool history);

// Of a stretch of the graph, in bytes.
struct AllocatorPeaks {
  int64_t allocated = 0;
  int64_t reserved = 0;
  int64_t reserved_after = 0;
};
// The graph once, in stretches that end at these steps (the last one's rest included). Throws OutOfMemoryError.
std::vector<AllocatorPeaks> allocator_peaks(const ProgramCosts& costs, const DeviceMemoryOptions& options,
                                            std::span<const uint32_t> ends);

}  // namespace shadowgraph
