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
// that were registered with it (shadowgraph/operators.h) are the exception: theirs is live at the node, as temporary.
// peak_with_scratch() adds what else is known of it (Scratch).
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

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class CustomOperators;  // shadowgraph/profile/custom_operators.h
class Scratch;          // shadowgraph/profile/scratch.h

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
  static MemoryTimeline of(const Graph& graph, std::vector<NodeId> nodes, const IdMap<NodeId, uint32_t>& order,
                           IdMap<StorageId, StorageKind> kinds, const CustomOperators& custom, const Scratch& scratch,
                           std::optional<c10::Device> device);

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

}  // namespace shadowgraph
