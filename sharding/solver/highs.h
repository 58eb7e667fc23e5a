// Asks HiGHS about what reductions leave of a problem: its least cost with a bound, whether anything is possible, and
// the least limit.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/sharding/assignment.h"
#include "sharding/solver/highs_library.h"

namespace shadowgraph {

struct HighsRequest {
  const HighsLibrary& library;
  double gap = 0;  // relative
  int threads = 1;
  double time_limit = 0;          // seconds
  std::vector<uint32_t> start{};  // a feasible choice; empty: none
};

struct HighsMinimum {
  bool possible = true;            // false: shown not to be
  AssignmentCost::Wide bound = 0;  // of all feasible choices, less what tolerances may have added
  std::vector<uint32_t> choice{};  // empty: none was found
};
HighsMinimum minimum_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// Says whether any choice is allowed and within the limit; nothing if that was not found out in the time.
std::optional<bool> is_possible_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

// The least limit that something fits in.
struct LeastLimit {
  AssignmentCost::Wide bound = 0;  // nothing fits in less
  AssignmentCost::Wide usage = 0;  // of `choice`
  std::vector<uint32_t> choice{};  // empty: none was found
};
LeastLimit least_limit_by_highs(const AssignmentProblem& problem, const HighsRequest& request);

}  // namespace shadowgraph
