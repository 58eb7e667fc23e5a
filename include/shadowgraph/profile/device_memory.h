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
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/caching_allocator.h"
#include "shadowgraph/profile/device_assumptions.h"

namespace SHADOWGRAPH_API shadowgraph {

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

}  // namespace shadowgraph
