// `shadowgraph whatif SOURCE --dtype bf16 --optimizer adamw`: what a recorded training step would hold otherwise.
#pragma once

#include "cli/source.h"
#include "shadowgraph/profile/what_if.h"

namespace shadowgraph::cli {

struct WhatIfRequest {
  CaptureRequest capture;  // how the step comes to be, if the source is no graph
  WhatIf change;
  bool json = false;
};

// Throws Error if no change is asked for, and what shadowgraph::what_if throws.
void what_if(const WhatIfRequest& request);

}  // namespace shadowgraph::cli
