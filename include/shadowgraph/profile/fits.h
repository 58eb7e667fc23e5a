// Whether a program fits into a device's memory.
//
//     const Profile costs = profile(graph, {.limit = MemoryLimit::parse("l4")});
//     to_text(*fits(costs));      // "fits: 21.3 of 22.0 GiB of an L4 24 GB (steady state, with allocator and context)"
//
// A training step is run several times through the caching allocator, so what counts is a run, not its first step.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/memory_limit.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

struct Fits {
  bool fits = false;
  // What the program takes of a device with room for all: reserved bytes, context and NCCL's buffers; on a CPU, live
  // bytes and known scratch.
  int64_t bytes = 0;
  bool at_least = false;  // what some calls take inside their kernels is unknown
  // More than there is, and yet it fits: the allocator gives cached memory back in time.
  bool by_giving_back = false;
  MemoryLimit memory;
  std::string with;  // what counts: "steady state, with allocator and context"
};

// Empty if no limit is known.
std::optional<Fits> fits(const Profile& profile);

std::string to_text(const Fits& fits);  // one line, without its end
// What a report begins with: that line, whose memory it is if nobody asked, and a line that is empty. Empty if no limit
// is known.
std::string report_head(const Profile& profile);
nlohmann::json to_json(const Fits& fits);

}  // namespace shadowgraph
