// Says what is known of memory inside kernels: rows by operators and kind of device, with their reasons.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

struct ScratchRow {
  std::string_view names;  // "mm bmm" (ir/operators/operator_name.h)
  c10::DeviceType device;
  CostRule bytes;           // of one call; empty where it cannot tell
  std::string_view reason;  // which buffers, and where that stands
  std::string_view copies;  // places ("0", "12") of arguments that are copied first if they are not contiguous
  const char* file = __builtin_FILE();
};

// Returns all rows for a kind of device.
std::span<const ScratchRow> scratch_rows(c10::DeviceType device);
// Returns the row for an operator on a device; nullptr if there is none.
const ScratchRow* find_scratch_row(const Target& target, c10::DeviceType device);

// Returns the device of a call's scratch: that of its first tensor, results before arguments. Empty for a call without
// tensors.
std::optional<c10::Device> device_of_call(const Graph& graph, NodeId node);

}  // namespace shadowgraph
