// What a device holds beyond live tensors: PyTorch's CUDA caching allocator over the allocations of a graph, static plans,
// and what surrounds both.
//
//     const DeviceMemory memory = device_memory(graph);
//     memory.reserved_peak;                     // what torch.cuda.max_memory_reserved() will say
//     memory.footprint();                       // about what nvidia-smi will say
//     const MemoryPlan plan = plan_memory(graph);
//     plan.bytes; plan.bound; plan.offsets[storage];
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// ---------------------------------------------------------------------------------------------------------------------
// The settings that people put into PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF); those that decide where memory is
// taken from. Names, defaults and refusals are those of libtorch 2.13 (c10/core/AllocatorConfig.h).

struct AllocatorSettings {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t max_split_size = kUnlimited;                 // bytes; larger blocks are not split
  int64_t max_non_split_rounding = 20 * kMebibyte;     // bytes by which such a block may exceed a request
  int64_t large_segment_size = 20 * kMebibyte;         // bytes asked for at once for requests of 1 to 10 MiB
  std::array<int64_t, 16> roundup_power2_divisions{};  // for sizes from 1 MiB << i; 0 and 1: rounded to 512 bytes
  double garbage_collection_threshold = 0;             // share of the allowed memory; 0: never
  double per_process_memory_fraction = 0;              // of the device's memory; 0: all of it, and no collection
  bool expandable_segments = false;

  // "max_split_size_mb:128,expandable_segments:True". Settings that do not matter here (pinned_*, backend:native, ...)
  // are accepted. Throws Error, naming the setting, for what libtorch refuses, and for backend:cudaMallocAsync, which is
  // another allocator.
  static AllocatorSettings parse(std::string_view text);
  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

// ---------------------------------------------------------------------------------------------------------------------
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

// ---------------------------------------------------------------------------------------------------------------------
// What a device holds while a graph runs.
//
// The graph's allocations and frees, in its order, go through a CachingAllocator. First comes what existed before:
// parameters, buffers, optimizer state, inputs, in the order of their placeholders. Then come each node's results, its
// scratch memory, and what dies at it. A training step is repeated. From the second on, gradients and results of the
// last one are freed first (zero_grad(set_to_none=True)) and optimizer state is there already. So reserved memory is
// that of a run, not of a step.

// Assumptions: what is on the device and in no graph. Every figure can be set.
struct DeviceAssumptions {
  // The CUDA context with PyTorch's kernels loaded lazily: not the allocator's, but nvidia-smi's. Measured on H100 with
  // CUDA 12: 480 to 560 MiB; other drivers 300 to 800.
  int64_t context = 520 * kMebibyte;
  // cuBLAS's workspace, which the caching allocator gives at the first matrix product and which is kept
  // (aten/src/ATen/cuda/CublasHandlePool.cpp). It has 32 MiB from compute capability 9.0 on, 8,519,680 bytes (4096 KiB
  // x 2 + 16 KiB x 8) before.
  int64_t cublas_workspace = 32 * kMebibyte;
  // NCCL's buffers for one process group, made when it is first used and kept; they are not the allocator's. NCCL has 4
  // MiB, 512 KiB and 4,915,200 bytes for its three protocols (NCCL src/init.cc, src/include/device.h). This is for two
  // neighbours on 16 channels; NCCL takes up to 32 channels, and fewer on slow links.
  int64_t nccl_group = 16 * 2 * (4 * kMebibyte + kMebibyte / 2 + 4'915'200);
};

struct DeviceMemoryOptions {
  std::optional<c10::Device> device;  // as profile()'s
  AllocatorSettings allocator;
  int64_t capacity = AllocatorSettings::kUnlimited;  // bytes of the device; the context is taken off
  int steps = 3;                                     // of a training step; others run once
  DeviceAssumptions assumptions;
  bool scratch = true;  // what is known of scratch memory inside kernels counts
};

struct DeviceMemory {
  std::string device;
  DeviceMemoryOptions options;  // that it was asked with
  // Bytes.
  int64_t requested_peak = 0;  // of live storages and known scratch
  int64_t allocated_peak = 0;  // rounded to blocks: torch.cuda.max_memory_allocated()
  int64_t reserved_peak = 0;   // segments: torch.cuda.max_memory_reserved()
  int64_t held_at_peak = 0;    // active bytes when the reserved bytes first reached their peak
  int64_t stuck_at_peak = 0;   // free bytes then in segments that something else holds
  int64_t segments = 0;        // at the end
  int64_t retries = 0;
  std::vector<int64_t> reserved_after;  // each step
  int64_t context = 0;                  // assumed
  int64_t cublas_workspace = 0;         // assumed; in the figures above. 0 without matrix products
  int64_t nccl = 0;                     // assumed; of all groups of more than one process that something is sent in
  // Reserved and not held, when it was most.
  int64_t fragmentation() const { return reserved_peak - held_at_peak; }
  int64_t footprint() const { return reserved_peak + context + nccl; }
};

// Throws OutOfMemoryError, naming the node, if the run does not fit into `capacity`.
DeviceMemory device_memory(const Graph& graph, const DeviceMemoryOptions& options = {});

// What other settings would reserve, best first: expandable_segments, and limits on splitting.
struct SettingsOutcome {
  std::string settings;  // as PYTORCH_ALLOC_CONF takes them
  int64_t reserved_peak = 0;
};
std::vector<SettingsOutcome> other_settings(const Graph& graph, const DeviceMemoryOptions& options = {});

// Says who keeps free memory from being given back when the reserved bytes are most. Each segment that is partly free
// has an entry: the storage that lives longest, with the free bytes beside it. Most come first.
struct PinnedMemory {
  StorageId storage;  // invalid: a workspace or scratch memory
  int64_t bytes = 0;  // of the storage
  int64_t stuck = 0;  // free in its segment
  int64_t segment = 0;
};
std::vector<PinnedMemory> pinned_memory(const Graph& graph, const DeviceMemoryOptions& options = {});

// ---------------------------------------------------------------------------------------------------------------------
// A static plan: one arena, each storage of the step at a fixed offset, so that storages alive together do not overlap.
//
// Several planners run, and the least arena is taken:
//
//   - each storage where it is born, into the lowest and into the tightest gap;
//   - the long-lived from below and the short-lived from above;
//   - all storages by size, and by size times life, into the lowest place that is free all their life. Only graphs of
//     at most `offline_limit` storages get these.
//
// No plan can be below `bound`, the most bytes alive at once. Storages that existed before are in the plan, below
// everything else.

struct PlanRequest {
  int64_t bytes = 0;
  uint32_t born = 0;  // first and last step alive, both inclusive
  uint32_t last = 0;
};

struct Plan {
  std::vector<int64_t> offsets;  // by request; multiples of the alignment
  int64_t bytes = 0;             // of the arena
  int64_t bound = 0;             // most aligned bytes alive at once
  std::string planner;
};

struct PlanOptions {
  std::optional<c10::Device> device;  // as profile()'s
  int64_t alignment = 512;            // bytes; a power of two
  size_t offline_limit = 2000;
};

// `n` log `n`, but for the offline planners. Requests of 0 bytes are at offset 0.
Plan plan_memory(const std::vector<PlanRequest>& requests, const PlanOptions& options = {});

struct MemoryPlan {
  IdMap<StorageId, int64_t> offsets{-1};  // -1: of another device
  int64_t bytes = 0;
  int64_t bound = 0;
  std::string planner;
  double overhead() const { return bound == 0 ? 0 : static_cast<double>(bytes - bound) / static_cast<double>(bound); }
};
MemoryPlan plan_memory(const Graph& graph, const PlanOptions& options = {});

}  // namespace shadowgraph
