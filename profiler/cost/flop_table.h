// FLOPs of matrix products, convolutions, attention and recurrent layers: 2 per multiply-accumulate.
//
// Each row is a pure function of shapes and the operators it applies to. Operators in PyTorch 2.13.0's
// torch.utils.flop_counter.flop_registry get exactly its numbers, including its simplifications:
//
//   - padding is not discounted, and biases are free here (elementwise_table.h counts them);
//   - causal masks do not reduce the count;
//   - the weight gradient of a grouped convolution is counted as if it had one group.
//
// Rows that the registry lacks are marked, so that totals are comparable either way: attention and recurrent layers on
// a CPU, matrix-vector products, ...
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// Returns nullopt for shapes that the operator cannot have; the call is then listed as uncovered.
using FlopRule = std::optional<int64_t> (*)(const OperandShapes&);

struct FlopRow {
  FlopRule rule;
  bool counted_by_pytorch;   // flop_registry has a formula for it
  std::string_view formula;  // human-readable
  std::string_view names;    // "mm _scaled_mm" (ir/operators/operator_name.h)
  // All work of its calls is counted, here or by a row of elementwise_table.h.
  bool counts_all = true;
  const char* file = __builtin_FILE();
};

std::span<const FlopRow> flop_table();

// Returns the row of "aten::mm" or "aten::mm.out"; nullptr without one. Call it once per target, not once per node.
const FlopRow* find_flop_row(std::string_view operator_name);

}  // namespace shadowgraph
