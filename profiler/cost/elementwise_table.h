// Arithmetic that is not a matrix product: additions, multiplications, divisions, comparisons and selections.
//
// Each row says of some operators which elements they walk over, and how many arithmetic operations and transcendental
// evaluations an element costs. Transcendental are exp, log, square root, sine, tanh, erf and general powers. The two
// are kept apart, since hardware does them at different rates: gelu is 4 operations and 1 transcendental an element.
// The row also says what kind of kernel runs, from which the time class and the colour in pictures follow.
//
// A selection together with the comparison that decides it counts as one. Copies, casts and random draws are rows with
// zero, so that "nothing to count" differs from "no formula". Norms use the usual convention (5 an element in training
// with an affine transform) rather than a count of any one kernel's instructions. docs/time.md lists the conventions.
//
// An operator without a row is still known in two cases. It counts nothing if other tables say enough: a view, a fill,
// uninitialised memory, a product that does nothing besides (flop_table.h). It counts one operation an element of the
// result if PyTorch tags it pointwise. Otherwise it is uncovered. The in-place, out and foreach forms use the row of
// the plain operator: aten::add_, aten::add.out and aten::_foreach_add_ are aten::add.
//
// Adding an operator: its name in a row of elementwise_table.cpp, one test in
// tests/profiler/elementwise_table_test.cpp.
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

// `each` is the row's work per element. Empty if the shapes are none the operator can have.
using ElementwiseRule = std::optional<ElementwiseWork> (*)(const OperandShapes&, ElementwiseWork each);

struct ElementwiseRow {
  // A pointwise row with transcendental work is of class kTranscendental. kOther says that names and facts tell.
  KernelClass kind;
  ElementwiseRule rule;
  ElementwiseWork each;
  std::string_view names;  // "add sub rsub" (ir/operators/operator_name.h)
  const char* file = __builtin_FILE();
};

std::span<const ElementwiseRow> elementwise_table();

// The row for "aten::add.Tensor", "aten::add_", "aten::_foreach_add_.List", ...; nullptr if there is none.
const ElementwiseRow* find_elementwise_row(std::string_view operator_name);

// How an operator's elementwise work is known.
enum class ElementwiseCoverage : uint8_t {
  kRow,           // a row of the table
  kFree,          // no work, by what other tables say
  kPointwiseTag,  // PyTorch tags it pointwise: one operation an element of the result
  kNone,          // no formula
};

// What a target's calls cost: looked up once a target, then evaluated once a node.
struct ElementwiseFormula {
  ElementwiseCoverage coverage = ElementwiseCoverage::kNone;
  const ElementwiseRow* row = nullptr;

  static ElementwiseFormula of(const Target& target);
  std::optional<ElementwiseWork> evaluate(const OperandShapes& call) const;
};

}  // namespace shadowgraph
