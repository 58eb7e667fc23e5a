// What a plan is worth, in short: how much of the devices it uses, what stays idle, and what to try next.
//
//     const ShardingVerdict& verdict = answer.verdict;
//     verdict.efficiency;       // 0.61: eight devices are 4.9 times as fast as one
//     verdict.unused_axes;      // {"tp"}: along it every device does the same
//     verdict.tries;            // {"a batch of 8: dp=4 does not divide the batch of 6"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct ShardingVerdict {
  double efficiency = 0;                 // speed-up over devices, 0 to 1
  std::vector<std::string> unused_axes;  // of two devices or more, over which nothing is cut
  // Axes of a size that does not divide the batch, so that none of them can cut it.
  std::vector<std::string> undivided_axes;
  std::optional<int64_t> batch;  // dimension 0 of all inputs, if they have one in common
  bool overlap_pays = true;      // whether a second stream makes the step shorter than the plan without one
  bool fits = true;              // whether a device holds at most the limit, or its memory where there is no limit
  std::vector<std::string> tries;
};

}  // namespace shadowgraph
