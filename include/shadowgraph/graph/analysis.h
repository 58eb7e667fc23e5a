// Analyses of graphs: effects, dependences, topological orders, aliasing, recompute regions.
//
// Effects list the storage versions that each node reads and writes. A storage has version 0 when it is allocated; each
// write, through any alias, creates the next version for all aliases. A node reads the storages of its tensor operands
// at their current version; operators that read geometry only (views, `empty_like`) are marked geometry_only(), since
// earlier writes do not matter to them. Filling a new result is not a write: it defines version 0.
//
//     %1 = aten::t(self=%0)      : f32[3,2]{1,3} @s0        reads s0@0
//          aten::add_(self=%1)   ...                        reads s0@0, writes s0: 0 -> 1
//     %3 = aten::relu(self=%0)   : f32[2,3] @s1             reads s0@1
//
// Random number generators are pseudo storages, one per device, with StorageIds from graph.storage_count() on, so
// random nodes are ordered like writes to one buffer. A random node uses that of its generator argument's device or,
// without one, of a function's device argument, or else of the device of its first tensor result or operand.
// Collectives (c10d) read and write one more pseudo storage, collectives(), since their order matters.
//
// Unknown targets (OperatorFacts) and nodes with opaque arguments are assumed to read and write all arguments.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StorageVersion {
  StorageId storage;
  uint32_t version = 0;
  friend bool operator==(const StorageVersion&, const StorageVersion&) = default;
};
struct StorageWrite {
  StorageId storage;
  uint32_t before = 0;
  uint32_t after = 0;
  friend bool operator==(const StorageWrite&, const StorageWrite&) = default;
};

class Effects {
 public:
  // Linear. Accepts any graph whose ids are in range, even if it is not well formed.
  static Effects of(const Graph& graph);

  // In order of the operands, without duplicates.
  std::span<const StorageVersion> reads(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {reads_.data() + e.reads, e.read_count};
  }
  std::span<const StorageWrite> writes(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {writes_.data() + e.writes, e.write_count};
  }
  bool geometry_only(NodeId node) const { return entries_[node.index].geometry_only; }
  bool collective(NodeId node) const { return entries_[node.index].collective; }
  bool random(NodeId node) const { return entries_[node.index].random; }
  bool host_read(NodeId node) const { return entries_[node.index].host_read; }
  bool unknown(NodeId node) const { return entries_[node.index].unknown; }
  // Returns whether the node has no write, randomness, collective, host read or unknown effect, and is not an end node.
  bool is_pure(NodeId node) const { return entries_[node.index].pure; }

  // Version at the end of the graph. Accepts pseudo storages.
  uint32_t final_version(StorageId storage) const { return versions_[storage.index]; }

  struct Generator {
    StorageId storage;  // the pseudo storage
    c10::Device device;
  };
  std::span<const Generator> generators() const { return generators_; }
  // The pseudo storage of collectives; invalid if there are none.
  StorageId collectives() const { return collectives_; }
  // Returns whether the storage is a pseudo storage (of a generator or of collectives).
  bool is_generator(StorageId storage) const { return storage.index >= storage_count_; }
  uint32_t pseudo_storage_count() const { return static_cast<uint32_t>(versions_.size()) - storage_count_; }

 private:
  struct Entry {
    uint32_t reads = 0;
    uint32_t writes = 0;
    uint32_t read_count = 0;
    uint32_t write_count : 26 = 0;
    uint32_t geometry_only : 1 = 0;
    uint32_t collective : 1 = 0;
    uint32_t random : 1 = 0;
    uint32_t host_read : 1 = 0;
    uint32_t unknown : 1 = 0;
    uint32_t pure : 1 = 0;
  };
  class Walk;
  StorageId generator_for(c10::Device device);

  std::vector<Entry> entries_;  // by node index
  std::vector<StorageVersion> reads_;
  std::vector<StorageWrite> writes_;
  std::vector<uint32_t> versions_;
  std::vector<Generator> generators_;
  StorageId collectives_;
  uint32_t storage_count_ = 0;
};

// Dependences between nodes. A node depends on another that
//   - produces a value that it reads, or allocates a storage that it accesses;
//   - is the last to write a storage that it reads or writes, or reads a storage that it overwrites (Effects). Random
//     nodes of one generator, and collectives, therefore stay in order;
//   - reads the host or is unknown, if the node itself does or is: host reads stay in order;
//   - is its forward node.
// A view depends on the geometry of its operands only: it is ordered with writes that may change geometry (t_, out=).
//
// Only direct edges are stored: a read depends on the last write only. Edits of the graph invalidate the object.
class Dependences {
 public:
  // Linear.
  static Dependences of(const Graph& graph) { return of(graph, Effects::of(graph)); }
  static Dependences of(const Graph& graph, const Effects& effects);

  // Direct dependences and dependents of a node, without duplicates.
  std::span<const NodeId> before(NodeId id) const { return row(before_, before_begin_, id); }
  std::span<const NodeId> after(NodeId id) const { return row(after_, after_begin_, id); }
  // A position where a group of nodes can run consecutively: before `position` (invalid: at the end), once the nodes in
  // `delayed` have been moved after it, in this order.
  struct MeetingPoint {
    NodeId position;
    std::vector<NodeId> delayed;
    // The last node of the group need not move, and `delayed` is empty.
    bool at_last = true;
    // If there is no such position: a node between two of the group by dependence, or one too far away for the search.
    NodeId obstacle;
  };
  // Searches at most `farthest` nodes for those to delay. Costs the edges of `nodes` and of the nodes searched.
  MeetingPoint meeting_point(const Graph& graph, std::span<const NodeId> nodes, size_t farthest = 10000) const;

 private:
  static std::span<const NodeId> row(const std::vector<NodeId>& edges, const std::vector<uint32_t>& begin, NodeId id) {
    return std::span(edges).subspan(begin[id.index], begin[id.index + 1] - begin[id.index]);
  }
  std::vector<NodeId> before_, after_;
  std::vector<uint32_t> before_begin_, after_begin_;  // by node index, plus one
};

// Returns all nodes, each after its dependences. The order is preserved, except that nodes required earlier are placed
// directly before the first that depends on them. Nodes of a group (`group_of(node)` >= 0) are consecutive. Throws
// GraphError if nodes or groups depend on each other cyclically; the message names one. Linear; no recursion.
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences);
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences,
                                      const IdMap<NodeId, int32_t>& group_of);

// Reorders the graph topologically. Returns whether any node was moved.
bool sort_topologically(Graph& graph);

// Alias analysis: whether values share memory.
//
// Values of different storages never alias. Within a storage, overlap() compares the geometry of two strided views:
//
//     x = base[0:2], y = base[2:4]       disjoint byte ranges                                       kNone
//     x = base[::2], y = base[1::2]      interleaved ranges; no common element modulo the strides   kNone
//     x = base[0], y = base.t()[0]       one common element                                         kPartial
//     x = base, y = base.view(...)       the same bytes, another shape                              kPartial
//     x = base, y = base                                                                            kSame
//
// The result is exact if one view is simple and the other has at most kMaxRuns runs of adjacent elements. A view is
// simple if no element is visited twice and its strides nest, as after slicing and transposing. Otherwise it is kMay.

// A strided view of a storage: sizes, strides and offset in elements of `itemsize` bytes.
struct StridedView {
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
  int64_t offset = 0;
  int64_t itemsize = 1;

  int64_t numel() const;
  // [begin, end) in bytes; {0, 0} if there are no elements.
  std::pair<int64_t, int64_t> bytes() const;
};
StridedView view_of(const Graph& graph, ValueId value);

// Compares itemsize, sizes, strides and offset.
bool same_geometry(const StridedView& a, const StridedView& b);
// Compares elements and their positions, ignoring strides of dimensions of size 1.
bool same_elements(const StridedView& a, const StridedView& b);
// Returns whether elements are contiguous in some order of dimensions: no gaps, no element visited twice.
bool is_dense(const StridedView& view);

enum class Overlap : uint8_t {
  kNone,     // no common byte
  kSame,     // the same elements in the same order
  kPartial,  // common bytes, but not kSame
  kMay,      // undecided within the search limit
};
constexpr auto enum_names(Overlap) { return names_in_order<Overlap>("none", "same", "partial", "may"); }

// Maximum number of runs of adjacent elements that overlap() compares before returning kMay.
constexpr int64_t kMaxRuns = 4096;

Overlap overlap(const StridedView& a, const StridedView& b);
// Returns whether an element is visited twice, as after expand() and unfold(): kNone, kPartial or kMay.
Overlap internal_overlap(const StridedView& view);

class AliasAnalysis {
 public:
  // Linear. The graph must outlive the object, unchanged.
  static AliasAnalysis of(const Graph& graph);

  // Also kMay for two non-strided values that share a storage.
  Overlap relation(ValueId a, ValueId b) const;
  // Returns whether the value visits an element twice.
  Overlap internal(ValueId value) const;
  // Byte range [begin, end) covered by the values of the storage.
  std::pair<int64_t, int64_t> bytes_used(StorageId storage) const { return reach_[storage.index]; }

 private:
  explicit AliasAnalysis(const Graph& graph) : graph_(&graph) {}

  const Graph* graph_;
  std::vector<std::pair<int64_t, int64_t>> reach_;
};

// Recompute regions of activation checkpoints.
//
//     r5 = checkpoint "block" in r1                      forward: activations inside are not saved
//     r9 = checkpoint "block" "recompute" in r0          backward: recomputes those nodes that are needed
//     n77: %90 = aten::mm(...) | r9 backward of n12      linked to the forward node that it recomputes
//
// Created by captures of shadowgraph::checkpoint (shadowgraph/capture/activation_checkpoint.h) and by the pass
// `checkpoint` (shadowgraph/passes/recompute.h). Nested modules have the same paths as in forward.

constexpr std::string_view kRecomputeClass = "recompute";

// Returns whether the region itself is a recompute region; false for regions nested in one.
inline bool is_recompute_region(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  return region.kind == RegionKind::kCheckpoint && graph.text_or_empty(region.class_name) == kRecomputeClass;
}

// Returns, by region, the innermost recompute region that is or contains it; invalid if none. Linear.
IdMap<RegionId, RegionId> recompute_regions(const Graph& graph);

}  // namespace shadowgraph
