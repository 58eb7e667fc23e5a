// Decides whether two views of one storage share bytes. Only the set of bytes matters, so views are first normalized:
// dimension order, sizes of 1 and splits of dimensions are removed.
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {
namespace {

struct Dimension {
  int64_t size = 1;
  int64_t stride = 0;  // bytes
};

// The places that a view visits, in normalized form. Dimensions are sorted by decreasing stride, in bytes; adjacent
// ones are merged and those of size 1 dropped. The elements themselves are the innermost run.
struct Lattice {
  c10::SmallVector<Dimension, 6> dimensions;
  int64_t begin = 0;  // byte of the lowest element
  int64_t run = 1;    // adjacent bytes at each place
  // Every stride is larger than the extent of all inner dimensions. Each byte then belongs to at most one place, found
  // by dividing by one stride after another.
  bool nested = true;
  bool repeats = false;  // has a stride of 0: places are visited more than once

  // Saturates: a view that visits more places than 2^63 is only compared with kMaxRuns.
  int64_t places() const {
    int64_t count = 1;
    for (const Dimension& d : dimensions) {
      if (__builtin_mul_overflow(count, d.size, &count)) return INT64_MAX;
    }
    return count;
  }
};

Lattice lattice_of(const StridedView& view) {
  Lattice result;
  result.begin = view.offset * view.itemsize;
  result.run = view.itemsize;
  for (size_t i = 0; i < view.sizes.size(); ++i) {
    // The stride of a dimension of size 1 is irrelevant.
    if (view.sizes[i] == 1) continue;
    // A stride of 0 visits the same places again; one visit is enough for overlap with other views.
    if (view.strides[i] == 0) {
      result.repeats = true;
    } else {
      result.dimensions.push_back({view.sizes[i], view.strides[i] * view.itemsize});
    }
  }
  auto& dims = result.dimensions;
  std::sort(dims.begin(), dims.end(), [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  // From the innermost dimension outwards: merge a dimension that continues the run, or the dimension inside it.
  size_t kept = dims.size();
  for (size_t i = dims.size(); i-- > 0;) {
    const Dimension d = dims[i];
    if (kept == dims.size() && d.stride == result.run) {
      result.run *= d.size;
    } else if (kept < dims.size() && d.stride == dims[kept].stride * dims[kept].size) {
      dims[kept].size *= d.size;
    } else {
      dims[--kept] = d;
    }
  }
  dims.erase(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(kept));
  // A stride may be smaller than the extent of the inner dimensions, as in as_strided with overlapping windows. A byte
  // may then belong to several places.
  int64_t inner = result.run;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i].stride < inner) result.nested = false;
    inner += (dims[i].size - 1) * dims[i].stride;
  }
  return result;
}

// Returns the first byte at or after `byte` that belongs to a nested lattice; nullopt if there is none.
std::optional<int64_t> next_byte_in(const Lattice& lattice, int64_t byte) {
  int64_t rest = byte - lattice.begin;
  // Goes down the dimensions like digits of a number: each takes as many whole steps as fit.
  if (rest <= 0) return lattice.begin;
  int64_t at = lattice.begin;
  // The result if no place of the inner dimensions reaches `byte`: the next place along the innermost dimension that
  // has one.
  std::optional<int64_t> next;
  for (const Dimension& d : lattice.dimensions) {
    const int64_t digit = std::min(rest / d.stride, d.size - 1);
    if (digit + 1 < d.size) next = at + (digit + 1) * d.stride;
    at += digit * d.stride;
    rest -= digit * d.stride;
  }
  return rest < lattice.run ? std::optional(at + rest) : next;
}

// Returns whether a lattice of at most kMaxRuns places shares a byte with a nested one.
bool intersects(const Lattice& walked, const Lattice& nested) {
  // Enumerates the places of the walked lattice: at most kMaxRuns searches, each linear in the rank.
  c10::SmallVector<int64_t, 6> index(walked.dimensions.size(), 0);
  int64_t at = walked.begin;
  while (true) {
    if (const auto found = next_byte_in(nested, at); found && *found < at + walked.run) return true;
    size_t d = index.size();
    while (d-- > 0) {
      if (++index[d] < walked.dimensions[d].size) {
        at += walked.dimensions[d].stride;
        break;
      }
      at -= (index[d] - 1) * walked.dimensions[d].stride;
      index[d] = 0;
    }
    if (d == SIZE_MAX) return false;
  }
}

// x = base[::2], y = base[1::2]: all places of a view are equal modulo the greatest common divisor of the strides.
bool apart_modulo_strides(const Lattice& a, const Lattice& b) {
  int64_t step = 0;
  for (const Lattice* lattice : {&a, &b}) {
    for (const Dimension& d : lattice->dimensions) step = std::gcd(step, d.stride);
  }
  // Both are single runs, whose byte ranges were compared before.
  if (step == 0) return false;
  // The distance is taken modulo the common step, so it does not matter which view starts first.
  const int64_t distance = ((b.begin - a.begin) % step + step) % step;
  return distance >= a.run && distance + b.run <= step;
}

}  // namespace

int64_t StridedView::numel() const { return c10::multiply_integers(sizes); }

std::pair<int64_t, int64_t> StridedView::bytes() const {
  if (numel() == 0) return {0, 0};
  int64_t last = offset;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return {offset * itemsize, (last + 1) * itemsize};
}

StridedView view_of(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return {graph.sizes(id), graph.strides(id), value.offset, static_cast<int64_t>(c10::elementSize(value.dtype))};
}

bool same_geometry(const StridedView& a, const StridedView& b) {
  return a.itemsize == b.itemsize && a.offset == b.offset && std::ranges::equal(a.sizes, b.sizes) &&
         std::ranges::equal(a.strides, b.strides);
}

// Strides of dimensions of size 1 do not matter, since they reach no element.
bool same_elements(const StridedView& a, const StridedView& b) {
  if (a.itemsize != b.itemsize || a.offset != b.offset || !std::ranges::equal(a.sizes, b.sizes)) return false;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.sizes[i] > 1 && a.strides[i] != b.strides[i]) return false;
  }
  return true;
}

bool is_dense(const StridedView& view) {
  if (view.numel() == 0) return true;
  const Lattice lattice = lattice_of(view);
  return !lattice.repeats && lattice.dimensions.empty();
}

// Cheap tests come first; nearly all pairs of a real graph are decided before the lattices are walked.
Overlap overlap(const StridedView& a, const StridedView& b) {
  if (a.numel() == 0 || b.numel() == 0) return Overlap::kNone;
  if (same_elements(a, b)) return Overlap::kSame;
  const auto [a_begin, a_end] = a.bytes();
  const auto [b_begin, b_end] = b.bytes();
  if (a_end <= b_begin || b_end <= a_begin) return Overlap::kNone;
  // Both views contain their common first byte.
  if (a_begin == b_begin) return Overlap::kPartial;
  const Lattice x = lattice_of(a);
  const Lattice y = lattice_of(b);
  if (x.dimensions.empty() && y.dimensions.empty()) return Overlap::kPartial;
  if (apart_modulo_strides(x, y)) return Overlap::kNone;
  const int64_t x_places = x.places();
  const int64_t y_places = y.places();
  // Walk the view with fewer runs and search the other one, which must be nested.
  if (y.nested && x_places <= kMaxRuns && (x_places <= y_places || !x.nested)) {
    return intersects(x, y) ? Overlap::kPartial : Overlap::kNone;
  }
  if (x.nested && y_places <= kMaxRuns) return intersects(y, x) ? Overlap::kPartial : Overlap::kNone;
  return Overlap::kMay;
}

// Checks whether a view visits a byte twice. Writing through such a view is undefined.
Overlap internal_overlap(const StridedView& view) {
  if (view.numel() <= 1) return Overlap::kNone;
  const Lattice lattice = lattice_of(view);
  if (lattice.repeats) return Overlap::kPartial;
  if (lattice.nested) return Overlap::kNone;
  const int64_t places = lattice.places();
  if (places > kMaxRuns) return Overlap::kMay;
  // Start of every run, dimension by dimension; after sorting, only neighbors can overlap.
  std::vector<int64_t> starts{lattice.begin};
  starts.reserve(static_cast<size_t>(places));
  for (const Dimension& d : lattice.dimensions) {
    const size_t count = starts.size();
    for (int64_t i = 1; i < d.size; ++i) {
      for (size_t j = 0; j < count; ++j) starts.push_back(starts[j] + i * d.stride);
    }
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] - starts[i - 1] < lattice.run) return Overlap::kPartial;
  }
  return Overlap::kNone;
}

AliasAnalysis AliasAnalysis::of(const Graph& graph) {
  AliasAnalysis result(graph);
  result.reach_.assign(graph.storage_count(), {0, 0});
  for (const NodeId n : graph.nodes()) {
    graph.for_each_output(n, [&](ValueId v) {
      const Value& value = graph.value(v);
      if (value.kind != ValueKind::kTensor || value.storage.index >= result.reach_.size()) return;
      if (value.layout != c10::Layout::Strided) return;
      const auto [begin, end] = view_of(graph, v).bytes();
      if (begin == end) return;
      auto& reach = result.reach_[value.storage.index];
      reach = reach.first == reach.second ? std::pair(begin, end)
                                          : std::pair(std::min(reach.first, begin), std::max(reach.second, end));
    });
  }
  return result;
}

// Values in different storages never alias: a capture assigns one StorageId per allocation.
Overlap AliasAnalysis::relation(ValueId a, ValueId b) const {
  const Value& x = graph_->value(a);
  const Value& y = graph_->value(b);
  if (x.kind != ValueKind::kTensor || y.kind != ValueKind::kTensor || !x.storage.valid() || x.storage != y.storage) {
    return a == b && x.kind == ValueKind::kTensor ? Overlap::kSame : Overlap::kNone;
  }
  // Sparse and mkldnn tensors have no strides to compare.
  if (x.layout != c10::Layout::Strided || y.layout != c10::Layout::Strided) {
    return a == b ? Overlap::kSame : Overlap::kMay;
  }
  return overlap(view_of(*graph_, a), view_of(*graph_, b));
}

Overlap AliasAnalysis::internal(ValueId id) const {
  const Value& value = graph_->value(id);
  if (value.kind != ValueKind::kTensor) return Overlap::kNone;
  return value.layout == c10::Layout::Strided ? internal_overlap(view_of(*graph_, id)) : Overlap::kMay;
}

}  // namespace shadowgraph
