// `fit MODEL --batch 1..512`: a table over batch sizes, fitted from a few captures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/source.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph::cli {

struct SizeRange {
  int64_t first = 1, last = 1, step = 1;
};
// Parses "1..512" or "8..512:8"; empty for anything else, including empty ranges.
std::optional<SizeRange> parse_size_range(const std::string& text);

// Captures a few batches, fits polynomials, checks them against a capture at the end of the range, and prints a row per
// batch. Batches that the fit does not cover are captured and marked.
struct SweepRequest {
  SizeRange range;
  std::optional<MemoryLimit> memory;  // also prints the largest batch that fits
  MemoryMetric by = MemoryMetric::kDevice;
  std::string spec;       // device for times; empty: that of `memory`, or h100
  std::string allocator;  // as in PYTORCH_ALLOC_CONF
  bool json = false;
};
void sweep_batches(const CaptureRequest& request, const SweepRequest& sweep);

}  // namespace shadowgraph::cli
