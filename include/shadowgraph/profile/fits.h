// Whether a program fits into a device's memory.
//
//     const Profile costs = profile(graph, {.limit = MemoryLimit::parse("l4")});
//     to_text(*fits(costs));      // "fits: 21.3 of 22.0 GiB of an L4 24 GB (steady state, with allocator and context)"
//
// A training step is run several times through the caching allocator, so what counts is a run, not its first step.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/passes/symbolic.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

struct Fits {
  bool fits = false;
  // What the program takes of a device with room for all: reserved bytes, context and NCCL's buffers; on a CPU, live
  // bytes and known scratch.
  int64_t bytes = 0;
  bool at_least = false;  // what some calls take inside their kernels is unknown
  // More than there is, and yet it fits: the allocator gives cached memory back in time.
  bool by_giving_back = false;
  MemoryLimit memory;
  std::string with;  // what counts: "steady state, with allocator and context"
};

// Empty if no limit is known.
std::optional<Fits> fits(const Profile& profile);

std::string to_text(const Fits& fits);  // one line, without its end
// What a report begins with: that line, whose memory it is if nobody asked, and a line that is empty. Empty if no limit
// is known.
std::string report_head(const Profile& profile);
nlohmann::json to_json(const Fits& fits);

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
constexpr auto enum_names(BoundedBytes) {
  return names_of<BoundedBytes>(
      {{BoundedBytes::kLive, "live"}, {BoundedBytes::kReserved, "reserved"}, {BoundedBytes::kDevice, "device"}});
}
// Throws Error for bytes of an allocator that a CPU does not have.
int64_t bytes_of(const SizeCost& cost, BoundedBytes bytes);

class SizeSweep {
 public:
  // `symbolic` must outlive this. Counts FLOPs at a few sizes and fits them.
  explicit SizeSweep(const SymbolicGraph& symbolic, std::optional<c10::Device> device = std::nullopt,
                     const AllocatorSettings& allocator = {});

  // Throws UnsupportedError for sizes that are not answered.
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

// What fits over batch and sequence together: a table of bytes, and the largest of each.
//
//     const SizeGrid grid = SizeGrid::of(capture, {.batches = {1, 2, 4, 8}, .seqs = {512, 1024}, .memory = limit});
//     std::cout << to_text(grid);
//
// A few captures give polynomials (SymbolicGraph), and one at the largest sizes must agree. Sizes that the polynomials
// do not answer are captured one by one.

// Makes the program at a batch and a sequence length. Throws Error or c10::Error where there is none.
using CaptureAtSizes = std::function<Graph(int64_t batch, int64_t seq)>;

struct SizeGridRequest {
  std::vector<int64_t> batches;  // of the table, rising; the largest are looked for between the first and the last
  std::vector<int64_t> seqs;
  MemoryLimit memory;
  BoundedBytes by = BoundedBytes::kDevice;
  AllocatorSettings allocator;
  std::optional<c10::Device> device;
};

struct SizeGridCell {
  std::optional<int64_t> bytes;  // empty: the program does not exist at these sizes
  bool fits = false;
};

struct SizeGrid {
  SizeGridRequest request;
  std::vector<std::vector<SizeGridCell>> cells;  // by batch, then by sequence
  std::vector<int64_t> largest_batch;            // at each sequence; 0: none of the range
  std::vector<int64_t> largest_seq;              // at each batch
  int64_t captures = 0;
  std::string why_captured;  // of sizes that no polynomial answers; empty: all are answered
  std::string limit;         // why some sizes have no program

  static SizeGrid of(const CaptureAtSizes& capture, const SizeGridRequest& request);
};

// 1, 2, 4 and so on up to the last, which is there, too.
std::vector<int64_t> doubling_sizes(int64_t first, int64_t last);

std::string to_text(const SizeGrid& grid);
nlohmann::json to_json(const SizeGrid& grid);

}  // namespace shadowgraph
