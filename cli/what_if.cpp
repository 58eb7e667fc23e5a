#include "cli/what_if.h"

#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/output.h"
#include "shadowgraph/error.h"

namespace shadowgraph::cli {

void what_if(const WhatIfRequest& request) {
  const WhatIf& change = request.change;
  if (!change.dtype && change.optimizer.empty() && change.accumulate == 1 && change.checkpoint.empty() &&
      change.zero_stage == 0) {
    throw Error(
        "what if what? Give at least one of --dtype, --optimizer, --accumulate, --checkpoint and --zero with --ranks");
  }
  CaptureRequest capture = request.capture;
  capture.train = true;
  const LoadedGraph loaded = load(capture);
  const WhatIfAnswer answer = shadowgraph::what_if(loaded.graph, change);
  const std::string text = request.json ? json_text(to_json(answer)) : to_text(answer);
  std::fputs(text.c_str(), stdout);
}

}  // namespace shadowgraph::cli
