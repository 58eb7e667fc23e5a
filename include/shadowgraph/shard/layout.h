// How a tensor lies on a mesh of devices.
//
//     DeviceMesh mesh = DeviceMesh::parse("dp=8,tp=4");
//     Layout layout = {Placement::shard(0), Placement::replicate()};     // "S(0),R": batch over dp, copies over tp
//     local_sizes(sizes, layout, mesh);                                    // of one device's part
//
// A layout has one placement for each axis of the mesh, in DTensor's words: replicated, cut along a dimension, or
// partial. A partial tensor is the sum, mean, maximum or minimum of what the devices have.
//
// A dimension may be several factors behind one another: [batch, sequence, hidden] viewed as [batch * sequence, hidden]
// has dimension 0 of factors batch and sequence. Cut along the sequence, each device then has a piece of every batch
// row. That is shard(0, outer): dimension 0 is `outer` equal stretches, each of which is cut into as many pieces as the
// axis has devices. (DTensor: _StridedShard with split_factor = outer.) shard(d) is shard(d, 1).
//
// Two axes that cut the same dimension with the same `outer` nest in the order of the axes: the second cuts the first
// one's pieces. All parts are equal: what does not divide has no such layout (no padding, no uneven pieces).
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
#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// The mesh: devices by their coordinates, the last axis varying fastest (as FakeMesh and torch's DeviceMesh).

constexpr size_t kMostMeshAxes = 4;

struct DeviceMesh {
  std::vector<MeshAxis> axes;  // 1 to kMostMeshAxes, named differently, of 1 device or more

  // "8", "8x8", "4x4x4" (axes "x", "y", "z", "w") or "dp=8,tp=4". Throws Error.
  static DeviceMesh parse(std::string_view text);
  int64_t size() const;  // devices
  int64_t coordinate(int64_t rank, size_t axis) const;
  std::vector<int64_t> ranks_along(size_t axis, int64_t rank) const;  // `rank` and those that differ along `axis` alone
  std::string to_string() const;                                      // "dp=8,tp=4"
};

// ---------------------------------------------------------------------------------------------------------------------
// Layouts.

enum class PartialOp : uint8_t { kSum, kAverage, kMax, kMin };
// As c10d spells them.
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
  std::array<Placement, kMostMeshAxes> placements_{};
  uint8_t size_ = 0;
};

// "S(0),R,P(sum)"; strided: "S(0,8)" for outer = 8.
std::string to_string(const Placement& placement);
std::string to_string(const Layout& layout);

// One device's sizes; nothing if a cut does not divide, names a dimension that is not there, or `outer` does not fit.
std::optional<std::vector<int64_t>> local_sizes(std::span<const int64_t> sizes, const Layout& layout,
                                                const DeviceMesh& mesh);

// Finds ways from one layout to another: which collectives and local moves, and what they cost.
//
//     const Redistribution way = planner.way(sizes, /*element_bytes=*/4, from, to);
//     for (const RedistributionStep& step : way.steps) ...      // all_gather over "tp" of dimension 1
//
// One planner serves both who count the cost and who write the program, so that what was counted is what runs. A way is
// the cheapest sequence of steps, each on one mesh axis (Dijkstra over layouts). Among equal ways it is the shorter,
// then the first in the order of axes and placements.

// What one step does on its axis. Pieces of a dimension are those of the part that a device has before the step.
enum class RedistributionKind : uint8_t {
  kSlice,          // R -> S: a device keeps its piece; no communication
  kAllGather,      // S -> R
  kAllReduce,      // P -> R
  kReduceScatter,  // P -> S
  kAllToAll,       // S -> S: of another dimension or another outer
};
constexpr auto enum_names(RedistributionKind) {
  return names_in_order<RedistributionKind>("slice", "all_gather", "all_reduce", "reduce_scatter", "all_to_all");
}

struct RedistributionStep {
  RedistributionKind kind = RedistributionKind::kSlice;
  uint8_t axis = 0;
  Placement from;
  Placement to;
  Layout after;  // of all axes; others than `axis` may be called otherwise now (a nested cut becomes a strided one)
};

struct Redistribution {
  bool possible = true;  // R and S do not become P
  int64_t picoseconds = 0;
  int64_t wire_bytes = 0;  // that a device sends
  std::vector<RedistributionStep> steps;
};

// Returns the layout after one step, if it is a possible one, otherwise nothing. Local moves must find all of the new
// part in the old one, so a cut cannot go around one that is nested in it.
std::optional<RedistributionStep> redistribution_step(const Layout& layout, size_t axis, const Placement& to,
                                                      const DeviceMesh& mesh, std::span<const int64_t> sizes);

// Returns how many separate blocks of memory one piece of a cut has. It looks at the part that a device has before the
// axis cuts it, or after it is gathered. It is 1 if pieces lie one behind the other. Otherwise a step copies once more,
// to get them so. `layout` cuts on `axis`.
int64_t blocks_of_pieces(const Layout& layout, size_t axis, std::span<const int64_t> sizes, const DeviceMesh& mesh);

struct RedistributionRates {
  const Interconnect* interconnect = nullptr;
  double memory_bandwidth = 1e12;  // B/s, of the device: pieces that are not one block are copied once more
  double launch = 5e-6;            // seconds of a local copy
};

class RedistributionPlanner {
 public:
  // What the rates point to must outlive it. Throws Error without an interconnect.
  RedistributionPlanner(const DeviceMesh& mesh, const RedistributionRates& rates);
  ~RedistributionPlanner();
  RedistributionPlanner(RedistributionPlanner&&) noexcept;
  RedistributionPlanner& operator=(RedistributionPlanner&&) noexcept;

  // `sizes` are those of the whole tensor. Not possible where a layout does not fit them.
  Redistribution way(std::span<const int64_t> sizes, int64_t element_bytes, const Layout& from, const Layout& to) const;

  // Picoseconds from each of `from` to each of `to`, by rows; kForbidden (shadowgraph/shard/solver.h) where it is
  // not possible. As way() says, only faster for many.
  std::vector<int64_t> costs(std::span<const int64_t> sizes, int64_t element_bytes, std::span<const Layout> from,
                             std::span<const Layout> to) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
