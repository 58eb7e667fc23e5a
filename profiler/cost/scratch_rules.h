// Rules for scratch memory inside kernels, by operator and device type, each with its source.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

struct ScratchRow {
  std::string_view names;                                 // "mm bmm" (ir/operators/operator_name.h)
  std::optional<int64_t> (*bytes)(const OperandShapes&);  // of one call; nullopt if unknown
  std::string_view reason;                                // the buffers, and the source file that allocates them
  std::string_view copies = "";  // indices ("0", "12") of arguments that are copied if they are not contiguous
  const char* file = __builtin_FILE();
};

std::span<const ScratchRow> scratch_rows(c10::DeviceType device);
// Returns the row for an operator on a device; nullptr without one.
const ScratchRow* find_scratch_row(const Target& target, c10::DeviceType device);

// Returns the device on which a call allocates scratch: that of its first tensor (results first); nullopt without any.
std::optional<c10::Device> device_of_call(const Graph& graph, NodeId node);

}  // namespace shadowgraph
