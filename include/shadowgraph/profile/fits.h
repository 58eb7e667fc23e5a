// Checks whether a program fits in a device's memory, at one or many sizes.
//
//     const Profile costs = profile(graph, {.limit = MemoryLimit::parse("l4")});
//     to_text(*fits(costs));      // "fits: 21.3 of 22.0 GiB of an L4 24 GB (steady state, with allocator and context)"
//
// A training step is run several times through the caching allocator, so the result is that of a run.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/passes/symbolic.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;  // shadowgraph/profile/device_spec.h
struct Profile;

// The one rule for all verdicts: a program fits if its steps run on a device with that memory, whose caching allocator
// releases cached blocks before it runs out, as PyTorch's does.
struct MemoryFit {
  bool fits = false;
  // Memory used: reserved bytes, context and NCCL buffers; on a CPU, live bytes and scratch. If the program does not
  // fit, on a device with unlimited memory; never more than the limit if it fits.
  int64_t bytes = 0;
  bool at_least = false;  // the scratch memory of some calls is unknown
  // Memory used on a device with unlimited memory, if the program fits only by releasing cached blocks in time.
  std::optional<int64_t> without_releasing;
  MemoryLimit memory;
  std::string with;  // what `bytes` include: "steady state, with allocator and context"
};

// Returns std::nullopt if no limit is known.
std::optional<MemoryFit> fits(const Profile& profile);

std::string to_text(const MemoryFit& fits);  // one line, without newline
// Returns the head of a report: that line, the device if it was implied, and an empty line. "" if no limit is known.
std::string fit_summary(const Profile& profile);
nlohmann::json to_json(const MemoryFit& fits);

// Costs of a symbolic graph at many sizes, without capturing at each of them.
//
// FLOPs are polynomials in the sizes, exact if the sizes are. Peak and saved bytes are from the memory timeline of the
// graph at each size, since the position of the peak depends on it; reserved bytes are from PyTorch's caching allocator
// at each size. If the FLOPs of a node do not fit a polynomial, those of its phase are counted at each size.

struct SizeCost {
  int64_t peak_bytes = 0;   // on the requested device, as Profile::leading_peak()
  int64_t saved_bytes = 0;  // activations saved for backward, as in Profile
  NodeFlops flops;          // all phases
  // Peak reserved bytes of the caching allocator during a run, see Profile::device_memory, and the same with context
  // and NCCL buffers. std::nullopt on a CPU, which has no such allocator.
  std::optional<int64_t> reserved_bytes;
  std::optional<int64_t> footprint_bytes;
  std::optional<double> seconds;  // estimated time of a step; std::nullopt without a device spec
};

SizeCost size_cost(const Profile& profile);
// The same on a device with `memory.capacity`: if the program fits there only because the allocator releases cached
// blocks, as `fits` counts, reserved and footprint bytes are those of that run.
SizeCost size_cost(const Graph& graph, const DeviceMemoryOptions& memory, const DeviceSpec* spec = nullptr);

// Bytes to which a memory limit applies: live tensors, reserved by the allocator, or reserved plus context.
enum class MemoryMetric : uint8_t { kLive, kReserved, kDevice };
constexpr auto enum_names(MemoryMetric) { return names_in_order<MemoryMetric>("live", "reserved", "device"); }
// Throws Error for bytes of an allocator on a CPU.
int64_t bytes_of(const SizeCost& cost, MemoryMetric bytes);
// Returns DeviceMemoryOptions::capacity for a limit on these bytes.
int64_t capacity_of(const MemoryLimit& limit, MemoryMetric bytes, const DeviceAssumptions& assumptions);

class SizeSweep {
 public:
  // `symbolic` and `spec` must outlive the object. Counts FLOPs at a few sizes and fits polynomials to them. `memory`
  // and `spec`: as for `size_cost`; the device defaults to that of the graph.
  explicit SizeSweep(const SymbolicGraph& symbolic, const DeviceMemoryOptions& memory = {},
                     const DeviceSpec* spec = nullptr);

  // Throws UnsupportedError for sizes that the symbolic graph does not cover.
  SizeCost at(const NamedSizes& sizes);

  // NodeFlops::matmul of a node of symbolic.base() or of a phase. std::nullopt: not a polynomial.
  const std::optional<Polynomial>& matmul_flops(NodeId node) const { return by_node_[node]; }
  const std::optional<Polynomial>& matmul_flops(PhaseId phase) const { return by_phase_[phase]; }
  std::string flops_text(PhaseId phase) const;

 private:
  const SymbolicGraph& symbolic_;
  SymbolicGraph::Instance instance_;
  DeviceMemoryOptions memory_;
  const DeviceSpec* spec_;
  IdMap<NodeId, std::optional<Polynomial>> by_node_;
  IdMap<PhaseId, std::optional<Polynomial>> by_phase_;
  std::array<std::optional<Polynomial>, 4> total_;  // matmul, elementwise, transcendental, beyond_pytorch
};

// Memory over batch and sequence length: a table of bytes, and the largest batch and sequence length that fit.
//
// Polynomials are fitted to a few captures (SymbolicGraph) and checked at the largest sizes. Others are captured.

// Captures the program at a batch size and sequence length. Throws Error or c10::Error if that is impossible.
using CaptureAtSizes = std::function<Graph(int64_t batch, int64_t seq)>;

struct SizeGridRequest {
  std::vector<int64_t> batches;  // increasing; the largest is searched for between the first and the last
  std::vector<int64_t> seqs;
  MemoryLimit memory;
  MemoryMetric by = MemoryMetric::kDevice;
  AllocatorSettings allocator;
  DeviceAssumptions assumptions;
  std::optional<c10::Device> device;

  // With the capacity that `memory` and `by` set.
  DeviceMemoryOptions device_memory() const;
};

struct SizeGridCell {
  std::optional<int64_t> bytes;  // std::nullopt: the program does not support these sizes
  bool fits = false;
};

struct SizeGrid {
  SizeGridRequest request;
  std::vector<std::vector<SizeGridCell>> cells;  // by batch, then by sequence
  std::vector<int64_t> largest_batch;            // by sequence length; 0: none in the range
  std::vector<int64_t> largest_seq;              // by batch
  int64_t captures = 0;
  std::string why_captured;  // why some sizes are not covered by polynomials; "": all are
  std::string limit;         // why the program does not support some sizes

  static SizeGrid of(const CaptureAtSizes& capture, const SizeGridRequest& request);
};

// Returns 1, 2, 4 and so on, and `last`.
std::vector<int64_t> doubling_sizes(int64_t first, int64_t last);

std::string to_text(const SizeGrid& grid);
nlohmann::json to_json(const SizeGrid& grid);

}  // namespace shadowgraph
