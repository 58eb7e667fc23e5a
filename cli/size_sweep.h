// `fit MODEL --batch 1..512`: a table over batch sizes from a handful of captures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/source.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph::cli {

struct SizeRange {
  int64_t first = 1;
  int64_t last = 1;
  int64_t step = 1;
};
// "1..512", "8..512:8"; empty for anything else, a range without sizes included.
std::optional<SizeRange> parse_size_range(const std::string& text);

// Captures at a few batches, fits, compares with a capture at the end of the range, and prints a row a batch. What does
// not fit is captured batch by batch, and says so.
struct SweepRequest {
  SizeRange range;
  std::optional<MemoryLimit> memory;  // also the largest batch that fits into it
  BoundedBytes by = BoundedBytes::kDevice;
  std::string allocator;  // as PYTORCH_ALLOC_CONF takes it
  bool json = false;
};
void sweep_batches(const CaptureRequest& request, const SweepRequest& sweep);

}  // namespace shadowgraph::cli
