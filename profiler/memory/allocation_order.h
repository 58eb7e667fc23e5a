// The order in which a graph allocates and frees storages, node by node: the input of an allocator simulation.
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
  // Covers storages on `device`; without an index, on all devices of its type.
  AllocationOrder(const ProgramCosts& costs, c10::Device device);

  uint32_t steps() const { return static_cast<uint32_t>(born_begin_.size()) - 1; }
  // Returns storages alive before the first node, in placeholder order.
  std::span<const StorageId> before() const { return before_; }
  std::span<const StorageId> born(uint32_t step) const { return row(born_, born_begin_, step); }
  // Returns storages freed after the node.
  std::span<const StorageId> dead(uint32_t step) const { return row(dead_, dead_begin_, step); }
  // Returns the node's scratch bytes, allocated and freed within it.
  int64_t scratch(uint32_t step) const { return scratch_[step]; }
  // Returns the stream that the node's results and scratch are allocated on.
  int32_t stream(uint32_t step) const { return streams_[step]; }
  // Returns other streams that use memory allocated by the node.
  std::span<const uint32_t> used_on(uint32_t step) const {
    const auto found = used_on_.find(step);
    return found == used_on_.end() ? std::span<const uint32_t>() : std::span(found->second);
  }
  // Returns storages alive at the end, in allocation order.
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

// The allocator and results after running a graph's steps.
struct DeviceRun {
  DeviceMemory memory;
  CachingAllocator allocator;  // tags are StorageId indices; kNoStorage for scratch and workspaces

  static constexpr uint32_t kNoStorage = 0xFFFFFFFFU;
};

// Throws OutOfMemoryError, which names the node. With `history` the allocator records every event.
DeviceRun run_on_device(const ProgramCosts& costs, const DeviceMemoryOptions& options, bool history);

// Peaks of a range of nodes, and the bytes reserved after it.
struct AllocatorPeaks {
  int64_t allocated = 0, reserved = 0, reserved_after = 0;
};
// Runs the graph once, returns the peaks of the ranges that end at `ends`; later nodes belong to the last range.
// Throws OutOfMemoryError.
std::vector<AllocatorPeaks> allocator_peaks(const ProgramCosts& costs, const DeviceMemoryOptions& options,
                                            std::span<const uint32_t> ends);

}  // namespace shadowgraph
