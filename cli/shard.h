// `shadowgraph shard SOURCE --mesh 8x8`: layouts for all tensors of a step, on many devices.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/source.h"

namespace shadowgraph::cli {

struct ShardRequest {
  CaptureRequest capture;
  std::string mesh;
  std::string spec;               // device; empty: by the graph's
  std::string interconnect;       // empty: what is usual around the device
  std::optional<int64_t> memory;  // bytes a device
  std::vector<std::string> pins;  // NAME=LAYOUT
  std::string rules;              // file of rules; empty: none
  bool unfold = false;
  bool cut_random = false;
  bool cut_vocabulary = false;
  bool recompute = false;            // compute again what does not fit
  bool compare = false;              // with plans as people write them
  std::vector<std::string> explain;  // placeholders or "n329"
  double time_limit = 20;            // seconds
  std::string solver = "own";        // own, highs, both
  std::string highs;                 // its library; empty: where it is usual
  std::string directory;             // for the graph, the plan and a device's graph; empty: none
  int64_t rank = 0;                  // whose graph is written there
  bool all_ranks = false;            // every device\'s
  std::string problem;               // file to write the problem to; empty: none
  std::string format = "json";       // of it: json, iopddl, lp
  std::string dot;                   // files for a picture of the plan; empty: none
  std::string svg;
  int rows = 40;
  bool json = false;
};

// Throws Error for what cannot be; if no plan fits into the memory, the error says why.
void shard(const ShardRequest& request);

}  // namespace shadowgraph::cli
