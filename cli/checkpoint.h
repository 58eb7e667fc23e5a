// `shadowgraph checkpoint SOURCE --pareto`, `--bytes 40GB`: what to compute again in backward, for how many bytes.
#pragma once

#include <optional>
#include <string>

#include "cli/source.h"

namespace shadowgraph::cli {

struct CheckpointRequest {
  CaptureRequest capture;         // how the step comes to be, if the source is no graph
  std::string modules;            // stages are these; empty: they are found
  std::optional<int64_t> bytes;   // the cheapest plan within these
  bool pareto = false;            // the whole curve
  bool by_time = false;           // cost is time on the device of `spec`, not FLOPs
  std::string spec;               // name of a device or file with its figures; empty: by the graph's device
  double link_bandwidth = 0;      // B/s to the host and back, each; 0: nothing waits there
  std::string output;             // graph file: the step with the plan within `bytes`
  std::string picture;            // SVG file: the curve
  std::string chain;              // JSON file
  std::string module_statistics;  // JSON file
  bool json = false;
};

// Throws Error if nothing is asked for, if no plan is within the bytes, and for a source that is no training step.
void checkpoint(const CheckpointRequest& request);

}  // namespace shadowgraph::cli
