// What the figures suggest, greatest stake first: what was seen, what it costs, and the option or line that changes it. The
// idea is Halide's profiler's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

struct Finding {
  std::string name;    // "activations", "logits", "layout-copies", ...: the same from version to version
  std::string seen;    // with the figures that made it worth saying
  std::string remedy;  // with the option or line that does it
  int64_t bytes = 0;   // at stake, of the peak or of what is moved; 0: not about memory
  double seconds = 0;  // at stake; 0: not about time, or no times are known
};

// docs/memory.md lists the triggers.
std::vector<Finding> findings(const Profile& profile);
std::string to_text(const std::vector<Finding>& findings);

}  // namespace shadowgraph
