// A static plan: one arena, each storage of the step at a fixed offset, so that storages alive together do not overlap.
//
// Several planners run, and the least arena is taken:
//
//   - each storage where it is born, into the lowest and into the tightest gap;
//   - the long-lived from below and the short-lived from above;
//   - all storages by size, and by size times life, into the lowest place that is free all their life. Only graphs of
//     at most `offline_limit` storages get these.
//
// No plan can be below `bound`, the most bytes alive at once. Storages that existed before are in the plan, below
// everything else.
//
//     const MemoryPlan plan = plan_memory(graph);
//     plan.bytes; plan.bound; plan.offsets[storage];
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct PlanRequest {
  int64_t bytes = 0;
  uint32_t born = 0;  // first and last step alive, both inclusive
  uint32_t last = 0;
};

struct Plan {
  std::vector<int64_t> offsets;  // by request; multiples of the alignment
  int64_t bytes = 0;             // of the arena
  int64_t bound = 0;             // most aligned bytes alive at once
  std::string planner;
};

struct PlanOptions {
  std::optional<c10::Device> device;  // as profile()'s
  int64_t alignment = 512;            // bytes; a power of two
  size_t offline_limit = 2000;
};

// `n` log `n`, but for the offline planners. Requests of 0 bytes are at offset 0.
Plan plan_memory(const std::vector<PlanRequest>& requests, const PlanOptions& options = {});

struct MemoryPlan {
  IdMap<StorageId, int64_t> offsets{-1};  // -1: of another device
  int64_t bytes = 0;
  int64_t bound = 0;
  std::string planner;
  double overhead() const { return bound == 0 ? 0 : static_cast<double>(bytes - bound) / static_cast<double>(bound); }
};
MemoryPlan plan_memory(const Graph& graph, const PlanOptions& options = {});

}  // namespace shadowgraph
