// Does what PyTorch's caching allocator does on a device that is not there (c10/cuda/CUDACachingAllocator.cpp). It has
// a small pool (requests of up to 1 MiB, in segments of 2 MiB) and a large one, both by stream. It takes the best fit,
// splits blocks and merges free neighbours; freed memory stays reserved until memory runs out.
//
// Deterministic: segments get rising addresses, where cudaMalloc's are anything. That only decides between free blocks
// of equal size.
//
//     CachingAllocator allocator;
//     const auto a = allocator.allocate(3 * kMebibyte);   // reserves 20 MiB, of which 17 stay free
//     allocator.free(a);
//     allocator.stats().reserved.peak;
//
// Logarithmic in the free blocks. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/profile/allocator_settings.h"

namespace SHADOWGRAPH_API shadowgraph {

// No segment can be had and nothing cached is left to give back; what() has the figures that PyTorch's error has.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

class CachingAllocator {
 public:
  struct Figure {
    int64_t now = 0;
    int64_t peak = 0;
  };
  // Bytes, as torch.cuda.memory_stats() names them.
  struct Stats {
    Figure requested;                // as asked for
    Figure allocated;                // rounded, in blocks that somebody holds
    Figure active;                   // those, and those freed but waiting for another stream
    Figure reserved;                 // in segments
    Figure inactive_split;           // free, in segments that something else holds: what the device cannot get back
    Figure segments;                 // how many
    int64_t device_allocations = 0;  // cudaMalloc, or pages mapped
    int64_t device_frees = 0;
    int64_t retries = 0;  // allocations that went well only after the cache was given back
  };
  enum class Action : uint8_t { kAllocate, kFreeRequested, kFreeCompleted, kSegmentAllocate, kSegmentFree };
  // What a block is for is the caller's number, `tag`, kept with it.
  struct Event {
    Action action;
    int64_t address;
    int64_t bytes;
    int32_t stream;
    uint32_t tag;
  };
  struct BlockInfo {
    int64_t address;
    int64_t bytes;
    int64_t requested;
    bool allocated;
    bool active;
    uint32_t tag;
  };
  struct SegmentInfo {
    int64_t address;
    int64_t bytes;
    int32_t stream;
    bool small;
    bool expandable;
    std::vector<BlockInfo> blocks;
  };
  // An allocation, until it is freed. It is empty for 0 bytes: nothing is allocated then.
  struct Handle {
    uint32_t block = 0xFFFFFFFFU;
    bool valid() const { return block != 0xFFFFFFFFU; }
  };

  // `capacity`: bytes of the device that segments may take.
  explicit CachingAllocator(const AllocatorSettings& settings = {}, int64_t capacity = AllocatorSettings::kUnlimited);
  ~CachingAllocator();
  CachingAllocator(CachingAllocator&&) noexcept;
  CachingAllocator& operator=(CachingAllocator&&) noexcept;

  // Throws OutOfMemoryError; the state is then as PyTorch's would be: the cache given back, nothing allocated.
  Handle allocate(int64_t bytes, int32_t stream = 0, uint32_t tag = 0);
  void free(Handle handle);
  // The block is used on another stream: once freed it waits for synchronize() before anybody gets it.
  void record_stream(Handle handle, int32_t stream);
  void synchronize();
  void empty_cache();

  const Stats& stats() const;
  void reset_peaks();
  int64_t address(Handle handle) const;
  std::vector<SegmentInfo> snapshot() const;  // by address
  // Notes every event from here on.
  void record_history();
  const std::vector<Event>& history() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
