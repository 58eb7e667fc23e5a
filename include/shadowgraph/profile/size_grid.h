// What fits over batch and sequence together: a table of bytes, and the largest of each.
//
//     const SizeGrid grid = SizeGrid::of(capture, {.batches = {1, 2, 4, 8}, .seqs = {512, 1024}, .memory = limit});
//     std::cout << to_text(grid);
//
// A few captures give polynomials (SymbolicGraph), and one at the largest sizes must agree. Sizes that the polynomials do
// not answer are captured one by one.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/memory_limit.h"
#include "shadowgraph/profile/sweep.h"

namespace SHADOWGRAPH_API shadowgraph {

// Makes the program at a batch and a sequence length. Throws Error or c10::Error where there is none.
using CaptureAtSizes = std::function<Graph(int64_t batch, int64_t seq)>;

struct SizeGridRequest {
  std::vector<int64_t> batches;  // of the table, rising; the largest are looked for between the first and the last
  std::vector<int64_t> seqs;
  MemoryLimit memory;
  BoundedBytes by = BoundedBytes::kDevice;
  AllocatorSettings allocator;
  std::optional<c10::Device> device;
};

struct SizeGridCell {
  std::optional<int64_t> bytes;  // empty: the program does not exist at these sizes
  bool fits = false;
};

struct SizeGrid {
  SizeGridRequest request;
  std::vector<std::vector<SizeGridCell>> cells;  // by batch, then by sequence
  std::vector<int64_t> largest_batch;            // at each sequence; 0: none of the range
  std::vector<int64_t> largest_seq;              // at each batch
  int64_t captures = 0;
  std::string why_captured;  // of sizes that no polynomial answers; empty: all are answered
  std::string limit;         // why some sizes have no program

  static SizeGrid of(const CaptureAtSizes& capture, const SizeGridRequest& request);
};

// 1, 2, 4 and so on up to the last, which is there, too.
std::vector<int64_t> doubling_sizes(int64_t first, int64_t last);

std::string to_text(const SizeGrid& grid);
nlohmann::json to_json(const SizeGrid& grid);

}  // namespace shadowgraph
