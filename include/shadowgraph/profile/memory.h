// Live bytes at every node, by kind, and the peak.
//
// The boundary rule. A step is one node in program order. The bytes *at* a node are those live while it runs: after it
// has allocated its results, before what died at it is freed. A storage freed "after node n" (Node::frees of n) is live
// at n and not at its successor:
//
//     node      n0         n1         n2         n3
//     born      A          B                     C
//     frees                           A          B
//     live at   A          A B        A B        B C
//                                     ^ A is still counted at n2, and never meets C
//
// Storages that existed before the program (born at a placeholder: parameters, buffers, inputs, constants) are counted
// from the first step, wherever their placeholder stands. Bytes are whole storages: a view costs nothing, a view that
// outlives its base keeps all of the base.
//
// Scratch memory that an operator takes and gives back inside one call is not in the graph and not counted. Operators
// that were registered with it (shadowgraph/profile/register_operator.h) are the exception: theirs is live at the node,
// as temporary. peak_with_scratch() adds what else is known of it (Scratch).
//
// A second track rounds each storage up to 512 bytes, the least block of CUDA's caching allocator
// (c10/cuda/CUDACachingAllocator: kMinBlockSize).
//
//     const auto timeline = MemoryTimeline::of(graph);
//     timeline.peak().bytes; timeline.peak().node; timeline.total(step);
//
// Linear in nodes and storages; about 80 bytes a step.
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

using BytesByKind = std::array<int64_t, kStorageKindCount>;  // indexed by StorageKind

constexpr int64_t kAllocationBlock = 512;  // bytes
constexpr int64_t rounded_bytes(int64_t bytes) {
  return (bytes + kAllocationBlock - 1) / kAllocationBlock * kAllocationBlock;
}

struct MemoryPeak {
  int64_t bytes = 0;
  uint32_t step = 0;
  NodeId node;  // the earliest with `bytes` live; invalid in an empty graph
  PhaseId phase;
  BytesByKind by_kind{};
};

class MemoryTimeline {
 public:
  // Takes the storages on `device`; if it has no index, those on all devices of its type. Without a device it takes
  // all.
  static MemoryTimeline of(const Graph& graph, std::optional<c10::Device> device = std::nullopt);

  uint32_t steps() const { return static_cast<uint32_t>(nodes_.size()); }
  NodeId node(uint32_t step) const { return nodes_[step]; }
  const BytesByKind& live(uint32_t step) const { return live_[step]; }
  int64_t total(uint32_t step) const { return total_[step]; }
  int64_t rounded_total(uint32_t step) const { return rounded_[step]; }

  const MemoryPeak& peak() const { return peak_; }
  // Live bytes and known scratch, where they are most; `by_kind` is without scratch.
  const MemoryPeak& peak_with_scratch() const { return peak_with_scratch_; }
  int64_t rounded_peak() const { return rounded_peak_; }  // may be at another step than peak()

  // Storages live at a step, largest first, then by id; at most `count`.
  std::vector<StorageId> alive_at(uint32_t step, size_t count) const;
  StorageKind kind(StorageId storage) const { return kinds_[storage]; }

 private:
  friend class ProgramCosts;

  struct Interval {
    StorageId storage;
    uint32_t born;  // first and last step live, both inclusive
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

// A storage that existed before the program ran: born at a placeholder, or at no node of the graph.
bool existed_before(const Graph& graph, const Storage& storage);

// Node positions in program order, from 0.
IdMap<NodeId, uint32_t> program_order(const Graph& graph);

// The peak of the steps that follow a training step's first.
//
// The first step makes the optimizer's state after backward, where there is room for it again. Later steps hold it from
// their beginning, so their peak is higher. It follows from the first step's record: what the optimizer made and keeps
// counts from the first node on.

struct SteadyState {
  MemoryPeak peak;
  std::vector<StorageId> kept;  // held at the peak from the step before, though the recorded step makes them later
};

// Empty if the record is of the steady state already, or makes no optimizer state. Empty, too, if gradients stay
// (zero_grads): later steps add to them, which the first does not show; capture one. Linear.
std::optional<SteadyState> steady_state(const Graph& graph, const MemoryTimeline& timeline);

// Bytes that autograd keeps between forward and backward, by storage: the most at once. A step of several micro-batches
// keeps those of one after another.
//
//   all          every storage that a saved-tensor hook sees, once, whole, from there until it is freed
//   activations  the part that the step itself made: without parameters, buffers, inputs and constants, which exist
//   anyway

struct SavedBytes {
  int64_t all = 0;
  int64_t activations = 0;
  int64_t storages = 0;  // how many

  static SavedBytes of(const Graph& graph);
  friend bool operator==(const SavedBytes&, const SavedBytes&) = default;
};

// The storages alive at some step, in words.

// One storage that is alive at some step, in words.
struct LiveStorage {
  StorageId storage;
  int64_t bytes = 0;
  StorageKind kind = StorageKind::kTemporary;
  std::string module;    // path of the module that made it; empty outside all modules
  std::string producer;  // operator, or for what existed before its placeholder and name: "sg::parameter fc.weight"
  std::string source;    // "file:line" of the producer, when known
  // The first value in it tells. Undefined, and no shape: no value is in it.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
};

// The `count` largest storages alive at `step`.
std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step, size_t count);

// The settings that people put into PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF); those that decide where memory is
// taken from. Names, defaults and refusals are those of libtorch 2.13 (c10/core/AllocatorConfig.h).

constexpr int64_t kMebibyte = int64_t{1} << 20;

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
  // are accepted. Throws Error, naming the setting, for what libtorch refuses, and for backend:cudaMallocAsync, which
  // is another allocator.
  static AllocatorSettings parse(std::string_view text);
  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

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

// What is on a device and in no graph: constants of the device and of its libraries.
//
//     DeviceAssumptions assumptions = DeviceAssumptions::of(DeviceSpec::named("a100"));
//     assumptions.workspace();                                      // 8,519,680
//     assumptions.cublas_workspace = cublas_workspace(":4096:8");   // as CUBLAS_WORKSPACE_CONFIG has it

struct DeviceSpec;

// Every figure can be set.
struct DeviceAssumptions {
  // The CUDA context with PyTorch's kernels loaded lazily: not the allocator's, but nvidia-smi's. This is Hopper's.
  // Measured with CUDA 13.0: 527 MiB before a kernel, 693 of inference, 751 to 771 of training, 640 of convolutions.
  // Other architectures are taken to have 520: CUDA 12 took 480 to 560 on an H100, other drivers 300 to 800.
  int64_t context = 768 * kMebibyte;
  // NCCL's buffers for one process group, made when it is first used and kept; they are not the allocator's. NCCL has 4
  // MiB, 512 KiB and 4,915,200 bytes for its three protocols (NCCL src/init.cc, src/include/device.h). This is for two
  // neighbours on 16 channels; NCCL takes up to 32 channels, and fewer on slow links.
  int64_t nccl_group = 16 * 2 * (4 * kMebibyte + kMebibyte / 2 + 4'915'200);
  // Bytes of cuBLAS's workspace. The caching allocator gives it at a handle's first matrix product on a stream, and it
  // is kept. Without a figure it is what PyTorch takes on the architecture.
  std::optional<int64_t> cublas_workspace;
  // The device's, as DeviceSpec has it: "sm_90", "gfx942". Empty: unknown, and taken for Hopper's.
  std::string architecture;

  static DeviceAssumptions of(const DeviceSpec& spec);
  // Returns the bytes of one workspace, as aten/src/ATen/cuda/CublasHandlePool.cpp has them. Hopper and Blackwell
  // (sm_9x, sm_10x, sm_12x) take 32 MiB, other GPUs of NVIDIA 8,519,680. AMD's gfx94x and gfx95x take 128 MiB, others
  // 32.
  int64_t workspace() const;
  // Says why it is as large, for people.
  std::string why_workspace() const;
};

// Returns the bytes that PyTorch takes where CUBLAS_WORKSPACE_CONFIG is this: ":KIBIBYTES:COUNT", once or more. Throws
// Error.
int64_t cublas_workspace(std::string_view config);

// What a device holds while a graph runs.
//
// The graph's allocations and frees, in its order, go through a CachingAllocator. First comes what existed before:
// parameters, buffers, optimizer state, inputs, in the order of their placeholders. Then come each node's results, its
// scratch memory, and what dies at it. A training step is repeated. From the second on, gradients and results of the
// last one are freed first (zero_grad(set_to_none=True)) and optimizer state is there already. So reserved memory is
// that of a run, not of a step.
//
// A block belongs to the stream that its node was issued on, and no other gets it. One that the program says is used on
// another stream (Tensor.record_stream) is free again at the end of the step. PyTorch looks whether the device is
// through with it, which this takes for no: the host runs ahead.
//
//     const DeviceMemory memory = device_memory(graph);
//     memory.reserved_peak;                     // what torch.cuda.max_memory_reserved() will say
//     memory.footprint();                       // about what nvidia-smi will say

struct DeviceMemoryOptions {
  std::optional<c10::Device> device;  // as profile()'s
  AllocatorSettings allocator;
  int64_t capacity = AllocatorSettings::kUnlimited;  // bytes of the device; the context is taken off
  int steps = 3;                                     // of a training step; others run once
  DeviceAssumptions assumptions;
  bool scratch = true;  // what is known of scratch memory inside kernels counts
};

struct DeviceMemory {
  c10::Device device = c10::kCPU;
  DeviceMemoryOptions options;  // that it was asked with
  // Bytes.
  int64_t requested_peak = 0;  // of live storages and known scratch
  int64_t allocated_peak = 0;  // rounded to blocks: torch.cuda.max_memory_allocated()
  int64_t reserved_peak = 0;   // segments: torch.cuda.max_memory_reserved()
  int64_t held_at_peak = 0;    // active bytes when the reserved bytes first reached their peak
  int64_t stuck_at_peak = 0;   // free bytes then in segments that something else holds
  int64_t segments = 0;        // at the end
  int64_t retries = 0;
  std::vector<int64_t> reserved_after;   // each step
  std::vector<int64_t> allocated_after;  // each step: torch.cuda.memory_allocated()
  int64_t context = 0;                   // assumed
  // In the figures above. One for each stream and thread with matrix products: backward runs on a thread of its own,
  // which has its own handle of cuBLAS.
  int64_t cublas_workspace = 0;
  int64_t nccl = 0;  // assumed; of all groups of more than one process that something is sent in
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

// What the steps of a training run hold: the first, which makes gradients and optimizer state, the second, the steady
// state.
//
//     const Capture run = capture_training_run(program, 3);
//     const RunMemory memory = RunMemory::of(run.graph);
//     memory.steps[0].peak; memory.steady().peak; memory.peak();       // live bytes
//     memory.reserved_peak();                                          // of the caching allocator
//
// Nothing is assumed of what one step leaves to the next: the run was recorded as it is, births and deaths of storages
// included. Bytes at a node are those of shadowgraph/profile/memory.h; reserved bytes come from one pass of the
// caching allocator over the whole run. Every step has the same inputs, which are there from the beginning.

struct StepMemory {
  int64_t peak = 0;  // most live bytes at a node of the step
  std::string op;    // that ran there
  std::string module;
  std::string phase;
  // Bytes of the caching allocator; absent where there is none, and in steps that a device out of memory does not
  // reach.
  std::optional<int64_t> allocated_peak;  // in blocks, during the step
  std::optional<int64_t> reserved_peak;   // in segments, during the step
  std::optional<int64_t> reserved_after;
};

struct RunMemory {
  std::vector<StepMemory> steps;
  std::string out_of_memory;  // where the run does not fit into DeviceMemoryOptions::capacity; otherwise empty

  // Takes a graph of capture_training_run; throws Error for others. `steps` of the options has no meaning here. Linear.
  static RunMemory of(const Graph& run, const DeviceMemoryOptions& options = {});

  const StepMemory& steady() const { return steps.back(); }
  int64_t peak() const;                          // live bytes, of all steps
  std::optional<int64_t> reserved_peak() const;  // of all steps
};

// The lines of a report: a row a step, and the peak of all.
std::string to_text(const RunMemory& run);

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
//
//     const MemoryPlan plan = plan_memory(graph);
//     plan.bytes; plan.bound; plan.offsets[storage];

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

// How much memory a device has for a program: a device's name, or a size.
//
//     MemoryLimit::parse("l4").bytes;        // 23612293120, which its driver gives to programs
//     MemoryLimit::parse("24GiB").title;     // "24GiB"
//     MemoryLimit::parse("24");              // throws Error: 24 of what?

struct DeviceSpec;  // shadowgraph/profile/device_spec.h

struct MemoryLimit {
  int64_t bytes = 0;
  std::string device;  // "l4"; empty for a size
  std::string title;   // for people: "NVIDIA L4 24 GB", or the size as it was given
  bool asked = true;   // false: nobody named it, it is the device that times are estimated for
  // What a size may have been meant for: cards are sold by sizes that their programs never have. Empty: nothing.
  std::string note;

  // Takes a size with its unit ("24GiB", "80 GB", "1.5TB"), or a number of bytes. Takes a name of `shadowgraph list
  // devices`, however it is spelled ("RTX 4090"), or a file with a device's figures. Throws Error for anything else.
  static MemoryLimit parse(const std::string& text);
  static MemoryLimit of_bytes(int64_t bytes);
  // What rows of option tables are made with whose field is bytes.
  static int64_t bytes_of(const std::string& text) { return parse(text).bytes; }
  static std::string text_of(int64_t bytes) { return std::to_string(bytes) + "B"; }
  static OptionTakes takes() {
    return {.kind = OptionKind::kBytes, .placeholder = "SIZE|DEVICE", .note = [](const std::string& text) {
              return parse(text).note;
            }};
  }
  // Empty for a device without figures of its memory.
  static std::optional<MemoryLimit> of(const DeviceSpec& spec);
};

}  // namespace shadowgraph
