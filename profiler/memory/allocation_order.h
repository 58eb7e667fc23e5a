// Says which storages come to be and die at which node: what an allocator sees of a graph, in order.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph {

class AllocationOrder {
 public:
  // Takes the storages on `device`; if it has no index, those on all devices of its type.
  AllocationOrder(const ProgramCosts& costs, c10::Device device);

  uint32_t steps() const { return static_cast<uint32_t>(born_begin_.size()) - 1; }
  // Returns storages alive before the first node runs, in the order of their placeholders.
  std::span<const StorageId> before() const { return before_; }
  std::span<const StorageId> born(uint32_t step) const { return row(born_, born_begin_, step); }
  // Returns storages that are dead once the node has run.
  std::span<const StorageId> dead(uint32_t step) const { return row(dead_, dead_begin_, step); }
  // Returns bytes that the node takes and gives back.
  int64_t scratch(uint32_t step) const { return scratch_[step]; }
  // Returns the stream that the node takes memory on, for its results as for itself.
  int32_t stream(uint32_t step) const { return streams_[step]; }
  // Returns other streams that use what memory the node makes.
  std::span<const uint32_t> used_on(uint32_t step) const {
    const auto found = used_on_.find(step);
    return found == used_on_.end() ? std::span<const uint32_t>() : std::span(found->second);
  }
  // Returns storages alive at the end, in the order of birth.
  std::span<const StorageId> left() const { return left_; }
  // Return the first and last step of a storage, both inclusive.
  uint32_t first(StorageId storage) const { return first_[storage]; }
  uint32_t last(StorageId storage) const { return last_[storage]; }

 private:
  static std::span<const StorageId> row(const std::vector<StorageId>& all, const std::vector<uint32_t>& begin,
                                        uint32_t step) {
    return std::span(all).subspan(begin[step], begin[step + 1] - begin[step]);
  }
  std::vector<StorageId> before_, born_, dead_, left_;
  std::vector<uint32_t> born_begin_, dead_begin_;
  std::vector<int64_t> scratch_;
  std::vector<int32_t> streams_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> used_on_;
  IdMap<StorageId, uint32_t> first_, last_;
};

// Runs a graph's steps through an allocator and keeps the allocator as it is after them.
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
