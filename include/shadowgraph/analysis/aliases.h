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
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

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
std::string_view to_string(Overlap overlap);

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

}  // namespace shadowgraph
