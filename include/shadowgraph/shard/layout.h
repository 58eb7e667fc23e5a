// Device meshes, layouts of tensors on them, and redistribution between layouts.
//
//     DeviceMesh mesh = DeviceMesh::parse("dp=8,tp=4");
//     Layout layout = {Placement::shard(0), Placement::replicate()};     // "S(0),R": sharded over dp
//     local_sizes(sizes, layout, mesh);                                    // sizes on one device
//
// A layout has a placement for each mesh axis, as in DTensor: replicated, sharded along a dimension, or partial. A
// partial tensor is the sum, mean, maximum or minimum of the local tensors.
//
// A dimension may be the product of several factors: [batch, sequence, hidden] viewed as [batch * sequence, hidden] has
// dimension 0 with factors batch and sequence. If it is sharded along the sequence, each device has a piece of every
// batch row. That is shard(0, outer): dimension 0 consists of `outer` equal ranges, each of which is split into as many
// pieces as the axis has devices. (DTensor: _StridedShard with split_factor = outer.) shard(d) is shard(d, 1).
//
// Two axes that shard the same dimension with the same `outer` nest in the order of the axes: the second splits the
// pieces of the first. Shards are equal: sizes that are not divisible are not supported (no padding, no uneven shards).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"

namespace SHADOWGRAPH_API shadowgraph {

constexpr size_t kMaxMeshAxes = 4;

// Devices by coordinate, with the last axis varying fastest (as in FakeMesh and torch's DeviceMesh).
struct DeviceMesh {
  std::vector<MeshAxis> axes;  // 1 to kMaxMeshAxes, with distinct names and at least 1 device

  // Parses "8", "8x8", "4x4x4" (axes "x", "y", "z", "w") or "dp=8,tp=4". Throws Error.
  static DeviceMesh parse(std::string_view text);
  int64_t size() const;  // number of devices
  int64_t coordinate(int64_t rank, size_t axis) const;
  std::vector<int64_t> ranks_along(size_t axis, int64_t rank) const;  // ranks that differ from `rank` at most in `axis`
  std::string to_string() const;                                      // "dp=8,tp=4"
};

enum class PartialOp : uint8_t { kSum, kAverage, kMax, kMin };
// Named as in c10d.
constexpr auto enum_names(PartialOp) { return names_in_order<PartialOp>("sum", "avg", "max", "min"); }

struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  PartialOp op = PartialOp::kSum;  // kPartial
  uint8_t dim = 0;                 // kShard
  int64_t outer = 1;               // kShard

  static constexpr Placement replicate() { return {}; }
  static constexpr Placement shard(int64_t dim, int64_t outer = 1) {
    return {Kind::kShard, PartialOp::kSum, static_cast<uint8_t>(dim), outer};
  }
  static constexpr Placement partial(PartialOp op = PartialOp::kSum) { return {Kind::kPartial, op, 0, 1}; }
  bool is_replicate() const { return kind == Kind::kReplicate; }
  bool is_shard() const { return kind == Kind::kShard; }
  bool is_partial() const { return kind == Kind::kPartial; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

class Layout {
 public:
  Layout() = default;
  explicit Layout(size_t axes) : size_(static_cast<uint8_t>(axes)) {}  // replicated
  Layout(std::initializer_list<Placement> placements) : Layout(std::span(placements.begin(), placements.size())) {}
  explicit Layout(std::span<const Placement> placements);  // throws Error if there are too many
  static Layout parse(std::string_view text);              // "S(0),R,P(sum)"; throws Error

  size_t size() const { return size_; }
  const Placement& operator[](size_t axis) const { return placements_[axis]; }
  Placement& operator[](size_t axis) { return placements_[axis]; }
  const Placement* begin() const { return placements_.data(); }
  const Placement* end() const { return placements_.data() + size_; }
  bool is_replicated() const;
  bool has_partial() const;
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::array<Placement, kMaxMeshAxes> placements_{};
  uint8_t size_ = 0;
};

// Returns "S(0),R,P(sum)"; with outer = 8: "S(0,8)".
std::string to_string(const Placement& placement);
std::string to_string(const Layout& layout);

// Returns the local sizes; std::nullopt if the layout does not divide them, or has an invalid dimension or `outer`.
std::optional<std::vector<int64_t>> local_sizes(std::span<const int64_t> sizes, const Layout& layout,
                                                const DeviceMesh& mesh);

// Finds the cheapest sequence of collectives and local copies from one layout to another.
//
// The result is the cheapest sequence of steps, each on one mesh axis (Dijkstra over layouts).

// Kind of a step on its axis.
enum class RedistributionKind : uint8_t {
  kSlice,          // R -> S: keeps the device's own piece; no communication
  kAllGather,      // S -> R
  kAllReduce,      // P -> R
  kReduceScatter,  // P -> S
  kAllToAll,       // S -> S: to another dimension or another `outer`
};
constexpr auto enum_names(RedistributionKind) {
  return names_in_order<RedistributionKind>("slice", "all_gather", "all_reduce", "reduce_scatter", "all_to_all");
}

struct RedistributionStep {
  RedistributionKind kind = RedistributionKind::kSlice;
  uint8_t axis = 0;
  Placement from;
  Placement to;
  Layout after;  // of all axes; the notation of other axes may change (a nested shard becomes strided)
};

struct Redistribution {
  bool possible = true;  // R and S cannot become P
  int64_t picoseconds = 0;
  int64_t wire_bytes = 0;  // sent by a device
  std::vector<RedistributionStep> steps;
};

// Returns the layout after one step, or std::nullopt if the step is impossible. A slice requires that the new shard is
// contained in the old one, so it cannot be an outer split of an existing shard.
std::optional<RedistributionStep> redistribution_step(const Layout& layout, size_t axis, const Placement& to,
                                                      const DeviceMesh& mesh, std::span<const int64_t> sizes);

// Returns the number of separate memory blocks of a piece of a shard, within the tensor before sharding over `axis` (or
// after gathering). 1 if pieces are contiguous; otherwise a step needs an additional copy. `layout` must shard `axis`.
int64_t piece_block_count(const Layout& layout, size_t axis, std::span<const int64_t> sizes, const DeviceMesh& mesh);

struct RedistributionRates {
  const Interconnect* interconnect = nullptr;
  double memory_bandwidth = 1e12;  // B/s of the device, for additional copies of pieces that are not contiguous
  double launch = 5e-6;            // seconds of launching a local copy
};

class RedistributionPlanner {
 public:
  // Objects that `rates` point to must outlive it. Throws Error without an interconnect.
  RedistributionPlanner(const DeviceMesh& mesh, const RedistributionRates& rates);
  ~RedistributionPlanner();
  RedistributionPlanner(RedistributionPlanner&&) noexcept;
  RedistributionPlanner& operator=(RedistributionPlanner&&) noexcept;

  // `sizes` are those of the whole tensor. Impossible if a layout does not divide them.
  Redistribution path(std::span<const int64_t> sizes, int64_t element_bytes, const Layout& from,
                      const Layout& to) const;

  // Returns a matrix of picoseconds from each of `from` (rows) to each of `to`; kForbidden (shadowgraph/shard/solver.h)
  // if impossible. Same as path(), but faster for many.
  std::vector<int64_t> costs(std::span<const int64_t> sizes, int64_t element_bytes, std::span<const Layout> from,
                             std::span<const Layout> to) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
