// `fit MODEL --batch 1..512`: a table over batch sizes from a handful of captures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/source.h"

namespace shadowgraph::cli {

struct SizeRange {
  int64_t first = 1;
  int64_t last = 1;
  int64_t step = 1;
};
// "1..512", "8..512:8"; empty for anything else, a range without sizes included.
std::optional<SizeRange> parse_size_range(const std::string& text);

// Which bytes a limit of memory is of: live tensors, what the allocator reserves, or that with the context.
enum class BoundedBytes : uint8_t { kLive, kReserved, kDevice };
std::string_view to_string(BoundedBytes bytes);  // as options spell them

// Captures at a few batches, fits, compares with a capture at the end of the range, and prints a row a batch. What does
// not fit is captured batch by batch, and says so.
struct SweepRequest {
  SizeRange range;
  std::optional<int64_t> memory;  // bytes: also the largest batch that holds at most so many
  BoundedBytes by = BoundedBytes::kDevice;
  std::string allocator;  // as PYTORCH_ALLOC_CONF takes it
  bool json = false;
};
void sweep_batches(const CaptureRequest& request, const SweepRequest& sweep);

}  // namespace shadowgraph::cli
