// `shadowgraph fit MODEL --memory 80GB`: the largest batch, the longest sequence, or (--mode decode) the longest
// context that a device of so much memory runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/source.h"

namespace shadowgraph::cli {

struct FitRequest {
  CaptureRequest capture;
  int64_t memory = 0;                    // bytes
  std::string by = "device";             // which bytes: live, reserved or device
  std::string allocator;                 // as PYTORCH_ALLOC_CONF takes it
  std::optional<int64_t> longest_from;   // --seq 1k..: the sequence is looked for, from here on, at the batch given
  std::vector<std::string> checkpoints;  // policies tried besides none: "auto", "layers.*"
  bool json = false;
};

// Captures at every size that is tried, at most some thirty; the answer is one of them, so nothing is extrapolated.
// What counts is `by`: what the device holds (reserved bytes of the caching allocator and the assumed context), the
// reserved bytes alone, or live bytes; on the CPU, which reserves nothing, the peak with what is known of scratch, or live
// bytes. Throws Error if not even the least size fits.
void fit(const FitRequest& request);

}  // namespace shadowgraph::cli
