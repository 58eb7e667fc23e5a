// Arithmetic that is not a matrix product: additions, multiplications, divisions, comparisons and selections.
//
// Each row gives, for some operators, the elements they iterate over, and arithmetic operations and transcendental
// evaluations per element. Transcendental are exp, log, square root, sine, tanh, erf and general powers. The two are
// counted separately, since hardware runs them at different rates: gelu is 4 operations and 1 transcendental.
// The row also gives the kernel class, which determines the time model and the color in pictures.
//
// A selection and the comparison that controls it count as one. Copies, casts and random draws are rows with zero, so
// that "no work" differs from "no formula". Norms use the usual convention (5 an element in training with an affine
// transform) rather than the instruction count of any one kernel. docs/time.md lists the conventions.
//
// An operator without a row is covered in two cases. It does no work if other tables imply that: a view, a fill,
// uninitialized memory, a matrix product without a fused operation (flop_table.h). It does one operation per element of
// the result if PyTorch tags it pointwise. Otherwise it is uncovered. In-place, out and foreach variants use the row of
// the functional operator: aten::add_, aten::add.out and aten::_foreach_add_ are aten::add.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "shadowgraph/graph/target.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

struct ElementwiseWork {
  int64_t flops = 0;
  int64_t transcendental = 0;  // evaluations
  friend bool operator==(const ElementwiseWork&, const ElementwiseWork&) = default;
};

// `each` is the row's work per element. Returns nullopt for shapes that the operator cannot have.
using ElementwiseRule = std::optional<ElementwiseWork> (*)(const OperandShapes&, ElementwiseWork each);

struct ElementwiseRow {
  // A pointwise row with transcendental work has class kTranscendental. kOther: derived from names and operator facts.
  KernelClass kind;
  ElementwiseRule rule;
  ElementwiseWork each;
  std::string_view names;  // "add sub rsub" (ir/operators/operator_name.h)
  const char* file = __builtin_FILE();
};

std::span<const ElementwiseRow> elementwise_table();

// Returns the row for "aten::add.Tensor", "aten::add_", "aten::_foreach_add_.List", ...; nullptr without one.
const ElementwiseRow* find_elementwise_row(std::string_view operator_name);

enum class ElementwiseCoverage : uint8_t {
  kRow,           // a row of the table
  kFree,          // no work, as implied by other tables
  kPointwiseTag,  // PyTorch tags it pointwise: one operation per element of the result
  kNone,          // no formula
};

// The cost formula of a target: looked up once per target, evaluated once per node.
struct ElementwiseFormula {
  ElementwiseCoverage coverage = ElementwiseCoverage::kNone;
  const ElementwiseRow* row = nullptr;

  static ElementwiseFormula of(const Target& target);
  std::optional<ElementwiseWork> evaluate(const OperandShapes& call) const;
};

}  // namespace shadowgraph
