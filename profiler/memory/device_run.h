// A graph's steps through an allocator, and the allocator after them.
#pragma once

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

}  // namespace shadowgraph
