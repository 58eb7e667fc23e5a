// Finds ways from one layout to another: which collectives and local moves, and what they cost.
//
//     const Redistribution way = planner.way(sizes, /*element_bytes=*/4, from, to);
//     for (const RedistributionStep& step : way.steps) ...      // all_gather over "tp" of dimension 1
//
// One planner serves both who count the cost and who write the program, so that what was counted is what runs. A way is
// the cheapest sequence of steps, each on one mesh axis (Dijkstra over layouts). Among equal ways it is the shorter,
// then the first in the order of axes and placements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/interconnect.h"
#include "shadowgraph/sharding/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

// What one step does on its axis. Pieces of a dimension are those of the part that a device has before the step.
enum class RedistributionKind : uint8_t {
  kSlice,          // R -> S: a device keeps its piece; no communication
  kAllGather,      // S -> R
  kAllReduce,      // P -> R
  kReduceScatter,  // P -> S
  kAllToAll,       // S -> S: of another dimension or another outer
};
std::string_view to_string(RedistributionKind kind);  // "slice", "all_gather", ...

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

  // Picoseconds from each of `from` to each of `to`, by rows; kForbidden (shadowgraph/sharding/assignment.h) where it is
  // not possible. As way() says, only faster for many.
  std::vector<int64_t> costs(std::span<const int64_t> sizes, int64_t element_bytes, std::span<const Layout> from,
                             std::span<const Layout> to) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shadowgraph
