// Which versions of which storages every node reads and writes.
//
// A storage has version 0 when it is born; each write, through whichever alias, makes the next version for all of them.
// A node reads the storages of its tensor operands at the version current at that point (an operand gives geometry, the
// read gives content). Views, `empty_like` and the like look at geometry only. Their reads are listed too, since they
// need the storage to exist, and geometry_only() says that no write before them matters. Filling a fresh result is not
// a write: that is its version 0.
//
//     %1 = aten::t(self=%0)      : f32[3,2]{1,3} @s0        reads s0@0
//          aten::add_(self=%1)   ...                        reads s0@0, writes s0: 0 -> 1
//     %3 = aten::relu(self=%0)   : f32[2,3] @s1             reads s0@1
//
// Random generators are pseudo storages, one per device: StorageIds from graph.storage_count() on, listed by
// generators(). A random node reads and writes the one of its generator argument's device. Without such an argument it
// is that of a function's device argument, or else of the device of its first tensor result or operand. So random nodes
// are ordered like writes to one buffer.
//
// Collectives (c10d) read and write one more pseudo storage, collectives(): every process must run them in the same
// order.
//
// A target without facts (OperatorFacts::unknown) is assumed to read and write everything it is given. So is a node
// that is given an opaque object. unknown_targets() lists them, and no report should stay silent about that.
#pragma once

#include <cstdint>
#include <optional>
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
  // Linear. Accepts any graph whose ids are in range, a broken one included.
  static Effects of(const Graph& graph);

  // In order of the operands, each storage once.
  std::span<const StorageVersion> reads(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {reads_.data() + e.reads, e.read_count};
  }
  std::span<const StorageWrite> writes(NodeId node) const {
    const Entry& e = entries_[node.index];
    return {writes_.data() + e.writes, e.write_count};
  }
  // The node reads only sizes and strides of its operands.
  bool geometry_only(NodeId node) const { return entries_[node.index].geometry_only; }
  bool collective(NodeId node) const { return entries_[node.index].collective; }
  bool random(NodeId node) const { return entries_[node.index].random; }
  bool host_read(NodeId node) const { return entries_[node.index].host_read; }
  bool unknown(NodeId node) const { return entries_[node.index].unknown; }
  // The results come to be and nothing else happens: no write, no randomness, no collective, no host read, nothing
  // unknown. sg::output and sg::gradient, which are there for what they say, are not pure. Placeholders are.
  bool is_pure(NodeId node) const { return entries_[node.index].pure; }

  // Version at the end of the graph; generators included.
  uint32_t final_version(StorageId storage) const { return versions_[storage.index]; }

  struct Generator {
    StorageId storage;  // the pseudo storage
    c10::Device device;
  };
  std::span<const Generator> generators() const { return generators_; }
  // The pseudo storage of collectives; invalid if there are none.
  StorageId collectives() const { return collectives_; }
  // A pseudo storage: a generator's or that of collectives. Their ids follow those of the graph's storages.
  bool is_generator(StorageId storage) const { return storage.index >= storage_count_; }
  uint32_t pseudo_storage_count() const { return static_cast<uint32_t>(versions_.size()) - storage_count_; }
  std::span<const TargetId> unknown_targets() const { return unknown_targets_; }

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
  std::vector<TargetId> unknown_targets_;
  StorageId collectives_;
  uint32_t storage_count_ = 0;
};

// What must come before what, and orders that respect it.
//
//     const auto dependences = Dependences::of(graph);
//     if (dependences.can_move_before(graph, node, position)) graph.move_before(node, position);
//     sort_topologically(graph);             // true if anything moved
//
// A node depends on another that
//   - makes a value that it reads, or allocates a storage that it touches;
//   - wrote last what it reads or writes, or read what it overwrites since that was written (Effects). So random nodes
//     of one generator, and collectives, stay in order;
//   - reads the host or is unknown, if it is such a node itself: what the host saw, it saw in that order;
//   - is its forward node.
// A view looks at the geometry of its operands alone. It stays on the same side of writes that may change that (t_,
// resize_, set_, out=), not of others.
//
// Edges are direct ones only: a read depends on the last write, not on all before. So there are about as many as there
// are operands. Edits make a Dependences stale; run it again.

class Dependences {
 public:
  // Linear.
  static Dependences of(const Graph& graph) { return of(graph, Effects::of(graph)); }
  static Dependences of(const Graph& graph, const Effects& effects);

  // What a node directly depends on, and what depends on it; each once.
  std::span<const NodeId> before(NodeId id) const { return row(before_, before_begin_, id); }
  std::span<const NodeId> after(NodeId id) const { return row(after_, after_begin_, id); }
  size_t edge_count() const { return before_.size(); }

  // Says whether `node` may stand directly before `position` (invalid: at the end), everything else staying where it
  // is. Nothing that it depends on, or that depends on it, may be between. Placeholders stay first, sg::output and
  // sg::gradient last. Costs the node's edges.
  bool can_move_before(const Graph& graph, NodeId node, NodeId position) const;

  // A place where `nodes` can all be run, one right after the other: before `position` (invalid: at the end). First
  // `delayed` must be moved there, too, in this order, to stand behind them.
  struct MeetingPoint {
    NodeId position;
    std::vector<NodeId> delayed;
    // The last of `nodes` need not move, and nobody has to wait.
    bool at_last = true;
    // If there is no such place: a node that needs one of them and that another needs, or one too far away to be found.
    NodeId obstacle;
  };
  // Nodes that wait are looked for among at most `farthest` nodes. Costs the edges of `nodes`, and of those looked at.
  MeetingPoint meeting_point(const Graph& graph, std::span<const NodeId> nodes, size_t farthest = 10000) const;

 private:
  static std::span<const NodeId> row(const std::vector<NodeId>& edges, const std::vector<uint32_t>& begin, NodeId id) {
    return std::span(edges).subspan(begin[id.index], begin[id.index + 1] - begin[id.index]);
  }
  std::vector<NodeId> before_, after_;
  std::vector<uint32_t> before_begin_, after_begin_;  // by node index, one more than there are
};

// Returns all nodes so that each comes after what it depends on. They keep their order, but for nodes that must come
// earlier: those come just before the first that needs them. Nodes of one group (`group_of(node)` >= 0) come together.
// Throws GraphError if nodes, or groups, depend on one another in a circle; the message names one. Linear; no
// recursion.
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences);
std::vector<NodeId> topological_order(const Graph& graph, const Dependences& dependences,
                                      const IdMap<NodeId, int32_t>& group_of);

// Puts the nodes into that order. Whether any moved.
bool sort_topologically(Graph& graph);

// Which values share memory, and how much of it.
//
//     const AliasAnalysis aliases = AliasAnalysis::of(graph);
//     aliases.relation(x, y) == Overlap::kNone     // a write through x is not seen through y
//     aliases.must_alias(x, y)                     // same elements in the same order: either may stand for the other
//     aliases.values_in(storage)                   // everything that looks at it, in order of first appearance
//
// Storages come first: values of different storages never alias (the capture gives one StorageId to one allocation).
// Within a storage it is a question about two strided views, which overlap() answers from their geometry alone:
//
//     x = base[0:2], y = base[2:4]       byte ranges apart                                          kNone
//     x = base[::2], y = base[1::2]      ranges interleave; no element in common modulo the strides   kNone
//     x = base[0], y = base.t()[0]       one element in common                                      kPartial
//     x = base, y = base.view(...)       the same bytes, another shape                              kPartial
//     x = base, y = base                                                                            kSame
//
// The answer is exact whenever one view is simple and the other has at most kMostRuns runs of adjacent elements. Simple
// means that no element is visited twice, in an order that nests, which slicing, transposing and viewing produce.
// Otherwise it is kMay, never a wrong kNone or kPartial. The tests compare with sets of bytes on thousands of random
// geometries.
//
// Only geometry counts: what the views contain at some point of the program is told by Effects.

// A strided view of some storage: sizes, strides and offset in elements of `itemsize` bytes.
struct StridedView {
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
  int64_t offset = 0;
  int64_t itemsize = 1;

  int64_t numel() const;
  // [begin, end) in bytes; {0, 0} without elements.
  std::pair<int64_t, int64_t> bytes() const;
};
StridedView view_of(const Graph& graph, ValueId value);

// The same dtype size, sizes, strides and offset.
bool same_geometry(const StridedView& a, const StridedView& b);
// The same elements at the same places, strides of dimensions of size 1 disregarded.
bool same_elements(const StridedView& a, const StridedView& b);
// No gaps between elements, none visited twice; any order of dimensions.
bool is_dense(const StridedView& view);

enum class Overlap : uint8_t {
  kNone,     // no byte in common
  kSame,     // the same elements in the same order
  kPartial,  // some byte in common, but not kSame
  kMay,      // not decided within bounds
};
constexpr auto enum_names(Overlap) { return names_in_order<Overlap>("none", "same", "partial", "may"); }

// How many runs of adjacent elements are looked at before the answer is kMay.
constexpr int64_t kMostRuns = 4096;

Overlap overlap(const StridedView& a, const StridedView& b);
// Whether an element is visited twice, as in expand() and unfold(): kNone, kPartial or kMay.
Overlap internal_overlap(const StridedView& view);

class AliasAnalysis {
 public:
  // Linear. The graph must outlive the object, unchanged.
  static AliasAnalysis of(const Graph& graph);

  // kMay as well for two values that are not strided but share a storage.
  Overlap relation(ValueId a, ValueId b) const;
  bool may_alias(ValueId a, ValueId b) const { return relation(a, b) != Overlap::kNone; }
  bool must_alias(ValueId a, ValueId b) const { return relation(a, b) == Overlap::kSame; }
  // Whether the value visits a place twice.
  Overlap internal(ValueId value) const;
  // Values made by live nodes, in program order.
  std::span<const ValueId> values_in(StorageId storage) const;
  // The bytes [begin, end) that its values reach.
  std::pair<int64_t, int64_t> bytes_used(StorageId storage) const { return reach_[storage.index]; }

 private:
  explicit AliasAnalysis(const Graph& graph) : graph_(&graph) {}

  const Graph* graph_;
  std::vector<uint32_t> first_;  // by storage: into values_, one more than there are storages
  std::vector<ValueId> values_;
  std::vector<std::pair<int64_t, int64_t>> reach_;
};

// Activation checkpoints in a graph: which nodes are computed again in backward.
//
//     r5 = checkpoint "block" in r1                      in forward: what was run without being kept
//     r9 = checkpoint "block" "recompute" in r0          in backward: the same nodes again, as far as they are needed
//     n77: %90 = aten::mm(...) | r9 backward of n12      each linked to the node that it repeats
//
// Both a capture of shadowgraph::checkpoint (shadowgraph/capture/activation_checkpoint.h) and the pass `checkpoint`
// (shadowgraph/passes/recompute.h) write this. Regions inside are repeated too, modules with the paths they have in
// forward.

constexpr std::string_view kRecomputeClass = "recompute";

// This very region; not those inside.
inline bool is_recompute_region(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  return region.kind == RegionKind::kCheckpoint && graph.text_or_empty(region.class_name) == kRecomputeClass;
}

// By region: the innermost recompute region that it is or lies in; invalid outside all. Linear in regions.
IdMap<RegionId, RegionId> recompute_regions(const Graph& graph);

}  // namespace shadowgraph
