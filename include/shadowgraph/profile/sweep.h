// What a symbolic graph costs at many sizes, without capturing at any of them.
//
//     SizeSweep sweep(symbolic, c10::Device("cuda:0"));
//     for (int64_t batch = 2; batch <= 512; ++batch) sweep.at({{"batch", batch}}).peak_bytes;
//     sweep.flops_text(Graph::kForward);        // "4089184256*batch"
//
// FLOPs are polynomials in the sizes, as exact as the sizes are. Peak and saved bytes come from the memory timeline of
// the graph at each size, since which step is the peak depends on it. Reserved bytes come from PyTorch's caching
// allocator over the graph at each size. A node whose FLOPs no polynomial fits makes its phase be counted at each size
// instead.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/symbolic_graph.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/flops.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

struct SizeCost {
  int64_t peak_bytes = 0;   // of the device asked for, as Profile's leading_peak()
  int64_t saved_bytes = 0;  // activations saved for backward, as Profile's
  NodeFlops flops;          // all phases
  // Most bytes in the caching allocator's segments during a run, as in Profile::device_memory, and these with the
  // context and NCCL's buffers. Empty on a CPU, which has no such allocator.
  std::optional<int64_t> reserved_bytes;
  std::optional<int64_t> footprint_bytes;
};

// The same figures of a graph as it is.
SizeCost size_cost(const Profile& profile);

// Which bytes a limit of memory is of: live tensors, what the allocator reserves, or that with the context.
enum class BoundedBytes : uint8_t { kLive, kReserved, kDevice };
std::string_view to_string(BoundedBytes bytes);           // "live", "reserved", "device"
BoundedBytes bounded_bytes_named(std::string_view word);  // throws Error
// Throws Error for bytes of an allocator that a CPU does not have.
int64_t bytes_of(const SizeCost& cost, BoundedBytes bytes);

class SizeSweep {
 public:
  // `symbolic` must outlive this. Counts FLOPs at a few sizes and fits them.
  explicit SizeSweep(const SymbolicGraph& symbolic, std::optional<c10::Device> device = std::nullopt,
                     const AllocatorSettings& allocator = {});

  // Throws SymbolicError for sizes that are not answered.
  SizeCost at(const NamedSizes& sizes);

  // Matrix products, convolutions, attention of one node of symbolic.base(), or of a phase. Empty: no polynomial.
  const std::optional<Polynomial>& matmul_flops(NodeId node) const { return by_node_[node]; }
  const std::optional<Polynomial>& matmul_flops(PhaseId phase) const { return by_phase_[phase]; }
  std::string flops_text(PhaseId phase) const;

 private:
  const SymbolicGraph& symbolic_;
  SymbolicGraph::Instance instance_;
  std::optional<c10::Device> device_;
  AllocatorSettings allocator_;
  IdMap<NodeId, std::optional<Polynomial>> by_node_;
  IdMap<PhaseId, std::optional<Polynomial>> by_phase_;
  std::array<std::optional<Polynomial>, 4> total_;  // matmul, elementwise, transcendental, beyond_pytorch
};

}  // namespace shadowgraph
