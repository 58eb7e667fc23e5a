// The settings that people put into PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF); those that decide where memory is
// taken from. Names, defaults and refusals are those of libtorch 2.13 (c10/core/AllocatorConfig.h).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

constexpr int64_t kMebibyte = int64_t{1} << 20;

struct AllocatorSettings {
  static constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

  int64_t max_split_size = kUnlimited;                 // bytes; larger blocks are not split
  int64_t max_non_split_rounding = 20 * kMebibyte;     // bytes by which such a block may exceed a request
  int64_t large_segment_size = 20 * kMebibyte;         // bytes asked for at once for requests of 1 to 10 MiB
  std::array<int64_t, 16> roundup_power2_divisions{};  // for sizes from 1 MiB << i; 0 and 1: rounded to 512 bytes
  double garbage_collection_threshold = 0;             // share of the allowed memory; 0: never
  double per_process_memory_fraction = 0;              // of the device's memory; 0: all of it, and no collection
  bool expandable_segments = false;

  // "max_split_size_mb:128,expandable_segments:True". Settings that do not matter here (pinned_*, backend:native, ...)
  // are accepted. Throws Error, naming the setting, for what libtorch refuses, and for backend:cudaMallocAsync, which is
  // another allocator.
  static AllocatorSettings parse(std::string_view text);
  friend bool operator==(const AllocatorSettings&, const AllocatorSettings&) = default;
};

}  // namespace shadowgraph
