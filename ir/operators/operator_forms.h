// Finds the functional, in-place and non-out= forms of an operator.
//
//     aten::add_.Tensor(self!, other)            aten::add.Tensor(self, other) -> self
//     aten::mm.out(self, mat2, out!)             aten::mm(self, mat2) -> out
//     aten::_fused_adamw_(self![], ...)          aten::_fused_adamw(self[], ...) -> (self[], ...)
//     aten::_native_batch_norm_legit(...)        aten::_native_batch_norm_legit_functional(...) -> (results..., mean, var)
//     aten::t_(self!)                            aten::t(self), a view
//
// A form is found by name and schema among the registered operators. Its name is the same (for `out=`), lacks the last
// underscore, ends in "_functional", or is given by the table (OperatorRow::functional). Any overload matches that
// takes the same arguments in the same order, without the `out=` ones, and returns the values that they would have
// held.
//
// Results are cached with the target and looked up again when operators have been registered since. A pointer stays
// valid as long as any copy of the target. Thread-safe.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// An operator without writes. Its results are `fresh` followed by `written`.
struct FunctionalForm {
  Target target;                    // the functional operator
  std::vector<uint16_t> arguments;  // its arguments, by position in the original
  std::vector<uint16_t> fresh;      // original results that are not written arguments
  std::vector<uint16_t> written;    // written arguments (original positions), `out=` ones first
  friend bool operator==(const FunctionalForm& a, const FunctionalForm& b);
};
// nullptr if there is none, or if the operator writes nothing.
const FunctionalForm* functional_form(const Target& target);

// The in-place operator whose functional form is the target, with the same arguments.
struct InPlaceForm {
  Target target;
  friend bool operator==(const InPlaceForm& a, const InPlaceForm& b);
};
const Target* in_place_form(const Target& target);

// The overload of an `out=` operator that allocates its results. It may still write the operator's other written
// arguments, such as running statistics, and may take factory options that the `out=` tensors imply: dtype, layout,
// device and pin_memory.
struct FreshForm {
  static constexpr uint16_t kOfResult = 0xFFFF;
  c10::OperatorHandle op;
  std::vector<uint16_t> arguments;  // by position in the original, or kOfResult
  friend bool operator==(const FreshForm& a, const FreshForm& b);
};
const FreshForm* fresh_form(const Target& target);

}  // namespace shadowgraph
