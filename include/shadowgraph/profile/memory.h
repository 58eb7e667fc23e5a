// Memory: live bytes over time, the caching allocator, device memory, and static memory plans.
//
// A step of the timeline is one node in program order. The bytes *at* a node are those live while it runs: after
// allocations, before frees. A storage freed "after node n" (Node::frees of n) is live at n, but not at its successor:
//
//     node      n0         n1         n2         n3
//     born      A          B                     C
//     frees                           A          B
//     live at   A          A B        A B        B C
//                                     ^ A is still counted at n2, and does not overlap with C
//
// Storages that exist before the program (placeholders) are live from the first step, regardless of the position of
// their placeholder. Bytes are those of whole storages: a view costs nothing, and keeps all of its base alive.
//
// Scratch memory that an operator allocates and frees within one call is not counted, except for operators registered
// with it (shadowgraph/profile/register_operator.h), whose scratch is live at the node as a temporary.
// peak_with_scratch() includes all known scratch memory (Scratch).
//
// A second total rounds each storage up to 512 bytes, the minimum block size of CUDA's caching allocator
// (c10/cuda/CUDACachingAllocator: kMinBlockSize). Linear in nodes and storages; about 80 bytes a step.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

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
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;  // shadowgraph/profile/device_spec.h

using BytesByKind = std::array<int64_t, kStorageKindCount>;  // indexed by StorageKind

constexpr int64_t kAllocationBlock = 512;  // bytes
constexpr int64_t rounded_bytes(int64_t bytes) {
  return (bytes + kAllocationBlock - 1) / kAllocationBlock * kAllocationBlock;
}

struct MemoryPeak {
  int64_t bytes = 0;
  uint32_t step = 0;
  NodeId node;  // the first with `bytes` live; invalid in an empty graph
  PhaseId phase;
  BytesByKind by_kind{};
};

class MemoryTimeline {
 public:
  // Includes the storages on `device`: on all devices of its type if it has no index, on all devices if std::nullopt.
  static MemoryTimeline of(const Graph& graph, std::optional<c10::Device> device = std::nullopt);

  uint32_t steps() const { return static_cast<uint32_t>(nodes_.size()); }
  NodeId node(uint32_t step) const { return nodes_[step]; }
  const BytesByKind& live(uint32_t step) const { return live_[step]; }
  int64_t total(uint32_t step) const { return total_[step]; }
  int64_t rounded_total(uint32_t step) const { return rounded_[step]; }

  const MemoryPeak& peak() const { return peak_; }
  // Peak of live bytes and known scratch; `by_kind` excludes scratch.
  const MemoryPeak& peak_with_scratch() const { return peak_with_scratch_; }
  int64_t rounded_peak() const { return rounded_peak_; }  // may be at a different step than peak()

  // Returns at most `count` storages live at a step, largest first, then by id.
  std::vector<StorageId> alive_at(uint32_t step, size_t count) const;
  StorageKind kind(StorageId storage) const { return kinds_[storage]; }

 private:
  friend class ProgramCosts;

  struct Interval {
    StorageId storage;
    uint32_t born;  // first and last live step, both inclusive
    uint32_t last;
    int64_t bytes;
  };
  std::vector<NodeId> nodes_;
  std::vector<BytesByKind> live_;
  std::vector<int64_t> total_;
  std::vector<int64_t> rounded_;
  std::vector<Interval> intervals_;
  IdMap<StorageId, StorageKind> kinds_;
  MemoryPeak peak_;
  MemoryPeak peak_with_scratch_;
  int64_t rounded_peak_ = 0;
};

// Returns whether the storage existed before the program: allocated at a placeholder, or at no node of the graph.
bool existed_before(const Graph& graph, const Storage& storage);

// Returns the position of each node in program order, from 0.
IdMap<NodeId, uint32_t> program_order(const Graph& graph);

// Peak memory of the steps after the first one, which creates optimizer state after backward; later steps hold it from
// the beginning, so their peak is higher. It is computed from the recorded first step, with that state live throughout.
struct SteadyState {
  MemoryPeak peak;
  std::vector<StorageId> kept;  // live at the peak, although the recorded step allocates them later
};

// Returns std::nullopt if the graph records a steady state already or creates no optimizer state, and if gradients are
// kept (zero_grads), since later steps accumulate into them: capture a later step instead. Linear.
std::optional<SteadyState> steady_state(const Graph& graph, const MemoryTimeline& timeline);

// Bytes saved by autograd between forward and backward, by storage: the maximum at any time.
//
//   all          storages seen by a saved-tensor hook, whole and counted once, from then on until they are freed
//   activations  those allocated by the step itself, without parameters, buffers, inputs and constants
struct SavedBytes {
  int64_t all = 0;
  int64_t activations = 0;
  int64_t storages = 0;  // number of storages

  static SavedBytes of(const Graph& graph);
  friend bool operator==(const SavedBytes&, const SavedBytes&) = default;
};

struct LiveStorage {
  StorageId storage;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  std::string module;    // path of the module that allocated it; "" outside of all modules
  std::string producer;  // operator, or placeholder and its name: "sg::parameter fc.weight"
  std::string source;    // "file:line" of the producer, if known
  // Of the first value of the storage. Undefined and empty if there is none.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
};

// Returns the `count` largest storages live at `step`.
std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step, size_t count);

// Settings of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) that affect allocation. Names, defaults and error
// conditions are those of libtorch 2.13 (c10/core/AllocatorConfig.h).

constexpr int64_t kMebibyte = int64_t{1} << 20;

struct AllocatorSettings {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t max_split_size = kUnlimited;                 // bytes; larger blocks are not split
  int64_t max_non_split_rounding = 20 * kMebibyte;     // bytes by which an unsplit block may exceed a request
  int64_t large_segment_size = 20 * kMebibyte;         // bytes of segments for requests of 1 to 10 MiB
  std::array<int64_t, 16> roundup_power2_divisions{};  // for sizes from 1 MiB << i; 0 and 1: round to 512 bytes
  double garbage_collection_threshold = 0;             // fraction of the allowed memory; 0: never
  double per_process_memory_fraction = 0;              // of the device memory; 0: no limit and no garbage collection
  bool expandable_segments = false;

  // Parses "max_split_size_mb:128,expandable_segments:True". Ignores settings that do not affect memory (pinned_*,
  // backend:native, ...). Throws Error for values that libtorch rejects, and for backend:cudaMallocAsync.
  static AllocatorSettings parse(std::string_view text);
  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

// Simulates PyTorch's caching allocator without a device (c10/cuda/CUDACachingAllocator.cpp): a small pool (requests of
// up to 1 MiB, in segments of 2 MiB) and a large pool per stream, best fit, splitting of blocks and merging of free
// neighbors. Freed memory remains reserved until the device is out of memory.
//
// Deterministic: segments have increasing addresses, whereas those of cudaMalloc are arbitrary.
//
// Logarithmic in the number of free blocks. Not thread-safe.
class CachingAllocator {
 public:
  struct Stat {
    int64_t current = 0;
    int64_t peak = 0;
  };
  // In bytes, named as in torch.cuda.memory_stats().
  struct Stats {
    Stat requested;                  // requested by the caller
    Stat allocated;                  // rounded, in allocated blocks
    Stat active;                     // allocated, or freed but waiting for another stream
    Stat reserved;                   // in segments
    Stat inactive_split;             // free, in partly used segments: cannot be released to the device
    Stat segments;                   // number of segments
    int64_t device_allocations = 0;  // calls of cudaMalloc, or mapped pages
    int64_t device_frees = 0;
    int64_t retries = 0;  // allocations that succeeded after the cache was released
  };
  enum class Action : uint8_t { kAllocate, kFreeRequested, kFreeCompleted, kSegmentAllocate, kSegmentFree };
  // `tag` is set by the caller of allocate().
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
  // An allocation. Invalid for 0 bytes, for which nothing is allocated.
  struct Handle {
    uint32_t block = 0xFFFFFFFFU;
    bool valid() const { return block != 0xFFFFFFFFU; }
  };

  // `capacity`: maximum bytes of all segments.
  explicit CachingAllocator(const AllocatorSettings& settings = {}, int64_t capacity = AllocatorSettings::kUnlimited);
  ~CachingAllocator();
  CachingAllocator(CachingAllocator&&) noexcept;
  CachingAllocator& operator=(CachingAllocator&&) noexcept;

  // Throws OutOfMemoryError. As in PyTorch, the cache has then been released and nothing is allocated.
  Handle allocate(int64_t bytes, int32_t stream = 0, uint32_t tag = 0);
  void free(Handle handle);
  // Marks the block as used by another stream: after it is freed, it is not reused before synchronize().
  void record_stream(Handle handle, int32_t stream);
  void synchronize();
  void empty_cache();

  const Stats& stats() const;
  void reset_peaks();
  int64_t address(Handle handle) const;
  std::vector<SegmentInfo> snapshot() const;  // by address
  void record_history();
  const std::vector<Event>& history() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Device memory outside of the graph: constants of the device and its libraries.
struct DeviceAssumptions {
  // CUDA context with lazily loaded kernels, in bytes. Shown by nvidia-smi, but not part of the allocator. The default
  // is for Hopper. Measured with CUDA 13.0: 527 MiB before the first kernel, 693 for inference, 751 to 771 for
  // training, 640 for convolutions. 520 for other architectures: CUDA 12 has 480 to 560 on an H100, others 300 to 800.
  int64_t context = 768 * kMebibyte;
  // NCCL buffers per process group, allocated outside of the allocator on first use and kept. NCCL uses 4 MiB, 512 KiB
  // and 4,915,200 bytes for its three protocols (NCCL src/init.cc, src/include/device.h). The default is for two
  // neighbors and 16 channels; NCCL uses up to 32 channels, and fewer on slow links.
  int64_t nccl_group = 16 * 2 * (4 * kMebibyte + kMebibyte / 2 + 4'915'200);
  // Bytes of the cuBLAS workspace, which the caching allocator allocates at the first matrix product of a handle on a
  // stream, and keeps. Default: the workspace that PyTorch uses on the architecture.
  std::optional<int64_t> cublas_workspace;
  // See DeviceSpec::architecture: "sm_90", "gfx942". Empty: unknown, treated as Hopper.
  std::string architecture;

  static DeviceAssumptions of(const DeviceSpec& spec);
  // Returns the bytes of a workspace, as in aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB on Hopper and Blackwell
  // (sm_9x, sm_10x, sm_12x), 8,519,680 on other NVIDIA GPUs, 128 MiB on AMD's gfx94x and gfx95x, 32 MiB on others.
  int64_t workspace() const;
  // Returns an explanation of the size for reports.
  std::string why_workspace() const;
};

// Returns PyTorch's bytes for a value of CUBLAS_WORKSPACE_CONFIG, ":KIBIBYTES:COUNT" once or repeated. Throws Error.
int64_t cublas_workspace(std::string_view config);

// Device memory while a graph runs.
//
// The graph's allocations and frees are replayed on a CachingAllocator in program order: first the storages that exist
// before (parameters, buffers, optimizer state, inputs) in the order of their placeholders, then the results, scratch
// memory and frees of each node. A training step is repeated: from the second step on, gradients and results of the
// previous one are freed first (zero_grad(set_to_none=True)), and optimizer state exists.
//
// A block is reused only on the stream on which its node was issued. A block used on another stream
// (Tensor.record_stream) becomes free at the end of the step: the host is assumed to run ahead.
struct DeviceMemoryOptions {
  std::optional<c10::Device> device;  // default as for profile()
  AllocatorSettings allocator;
  int64_t capacity = AllocatorSettings::kUnlimited;  // device memory in bytes, including the context
  int steps = 3;                                     // of a training run; other programs run once
  DeviceAssumptions assumptions;
  bool scratch = true;  // include known scratch memory of kernels
};

struct DeviceMemory {
  c10::Device device = c10::kCPU;
  DeviceMemoryOptions options;  // of the request
  int64_t requested_peak = 0;   // of live storages and known scratch
  int64_t allocated_peak = 0;   // rounded to blocks: torch.cuda.max_memory_allocated()
  int64_t reserved_peak = 0;    // in segments: torch.cuda.max_memory_reserved()
  int64_t held_at_peak = 0;     // active bytes when reserved bytes first reach their peak
  int64_t stuck_at_peak = 0;    // free bytes in partly used segments at that time
  int64_t segments = 0;         // at the end
  int64_t retries = 0;
  std::vector<int64_t> reserved_after;   // after each step
  std::vector<int64_t> allocated_after;  // after each step: torch.cuda.memory_allocated()
  int64_t context = 0;                   // assumed
  // Included above. One for each stream and thread (backward has its own) with matrix products.
  int64_t cublas_workspace = 0;
  int64_t nccl = 0;  // assumed; of all groups of more than one process with communication
  // Reserved but not active bytes at the peak.
  int64_t fragmentation() const { return reserved_peak - held_at_peak; }
  int64_t footprint() const { return reserved_peak + context + nccl; }
};

// Throws OutOfMemoryError that names the node if the run does not fit in `capacity`.
DeviceMemory device_memory(const Graph& graph, const DeviceMemoryOptions& options = {});

// Reserved memory with other allocator settings, best first: expandable_segments, and limits on splitting.
struct SettingsOutcome {
  std::string settings;  // as in PYTORCH_ALLOC_CONF
  int64_t reserved_peak = 0;
};
std::vector<SettingsOutcome> other_settings(const Graph& graph, const DeviceMemoryOptions& options = {});

// Finds storages that prevent free memory from being released when reserved bytes are at their peak: the longest-lived
// storage of each partly free segment, by decreasing free bytes of the segment.
struct FragmentationCause {
  StorageId storage;  // invalid: a workspace or scratch memory
  int64_t bytes = 0;  // of the storage
  int64_t stuck = 0;  // free bytes in its segment
  int64_t segment = 0;
};
std::vector<FragmentationCause> fragmentation_causes(const Graph& graph, const DeviceMemoryOptions& options = {});

// Memory of the steps of a training run: the first, which creates gradients and optimizer state, and later ones.
// Tensors that persist between steps, and their lifetimes, are recorded rather than assumed. Reserved bytes are from
// one pass of the caching allocator over the whole run. All steps use the same inputs, which exist from the beginning.
struct StepMemory {
  int64_t peak = 0;  // peak live bytes of the step
  std::string op;    // operator at the peak
  std::string module;
  std::string phase;
  // Bytes of the caching allocator; absent for CPUs, and for steps after the device is out of memory.
  std::optional<int64_t> allocated_peak;  // in blocks, during the step
  std::optional<int64_t> reserved_peak;   // in segments, during the step
  std::optional<int64_t> reserved_after;
};

struct RunMemory {
  std::vector<StepMemory> steps;
  std::string out_of_memory;  // where the run exceeds DeviceMemoryOptions::capacity; "" if it fits

  // Takes a graph of capture_training_run; throws Error for others. Ignores `steps` of the options. Linear.
  static RunMemory of(const Graph& run, const DeviceMemoryOptions& options = {});

  const StepMemory& steady() const { return steps.back(); }
  int64_t peak() const;                          // live bytes; maximum of all steps
  std::optional<int64_t> reserved_peak() const;  // maximum of all steps
};

// Formats a report: one row per step, and the overall peak.
std::string to_text(const RunMemory& run);

// Static memory plan: assigns each storage of the step a fixed offset in one arena, such that storages with overlapping
// lifetimes do not overlap in memory. Uses the smallest arena of first fit and best fit in allocation order; long-lived
// storages from the bottom and short-lived ones from the top; and, for graphs of at most `offline_limit` storages, by
// size, and by size times lifetime, at the lowest offset that is free during the lifetime.
//
// `bound`, the peak of live bytes, is a lower bound for any plan. Storages that exist before are at the lowest offsets.
struct AllocationLifetime {
  int64_t bytes = 0;
  uint32_t born = 0;  // first and last live step, both inclusive
  uint32_t last = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // by request; multiples of the alignment
  int64_t bytes = 0;             // size of the arena
  int64_t bound = 0;             // peak of aligned live bytes
  std::string planner;
};

struct MemoryLayoutOptions {
  std::optional<c10::Device> device;  // default as for profile()
  int64_t alignment = 512;            // bytes; a power of two
  size_t offline_limit = 2000;
};

// O(n log n), except for the offline planners. Requests of 0 bytes have offset 0.
ArenaLayout memory_layout(const std::vector<AllocationLifetime>& requests, const MemoryLayoutOptions& options = {});

struct MemoryLayout {
  IdMap<StorageId, int64_t> offsets{-1};  // -1: on another device
  int64_t bytes = 0;
  int64_t bound = 0;
  std::string planner;
  double overhead() const { return bound == 0 ? 0 : static_cast<double>(bytes - bound) / static_cast<double>(bound); }
};
MemoryLayout memory_layout(const Graph& graph, const MemoryLayoutOptions& options = {});

// Memory available to a program, given as a device name or a size.
//
//     MemoryLimit::parse("l4").bytes;        // 23612293120, the memory available to programs
//     MemoryLimit::parse("24GiB").title;     // "24GiB"
//     MemoryLimit::parse("24");              // throws Error: no unit
struct MemoryLimit {
  int64_t bytes = 0;
  std::string device;     // "l4"; "" for a size
  std::string title;      // for display: "NVIDIA L4 24 GB", or the size as given
  bool requested = true;  // false: implied by the device that times are estimated for
  // A warning for a size that looks like the nominal memory of a device, of which less is available to programs, or "".
  std::string note;

  // Parses a size with unit ("24GiB", "80 GB", "1.5TB"), a number of bytes, a device name of `shadowgraph list devices`
  // in any spelling ("RTX 4090"), or the path of a device spec file. Throws Error for anything else.
  static MemoryLimit parse(const std::string& text);
  static MemoryLimit of_bytes(int64_t bytes);
  // For option tables with a field of bytes.
  static int64_t bytes_of(const std::string& text) { return parse(text).bytes; }
  static std::string text_of(int64_t bytes) { return std::to_string(bytes) + "B"; }
  static OptionDomain takes() {
    return {.kind = OptionKind::kBytes, .placeholder = "SIZE|DEVICE", .note = [](const std::string& text) {
              return parse(text).note;
            }};
  }
  // Returns std::nullopt if the memory of the device is unknown.
  static std::optional<MemoryLimit> of(const DeviceSpec& spec);
};

}  // namespace shadowgraph
