// Finds the other forms of an operator: which one computes, without writing, what it writes, and the other way.
//
//     aten::add_.Tensor(self!, other)            aten::add.Tensor(self, other) -> self
//     aten::mm.out(self, mat2, out!)             aten::mm(self, mat2) -> out
//     aten::_fused_adamw_(self![], ...)          aten::_fused_adamw(self[], ...) -> (self[], ...)
//     aten::_native_batch_norm_legit(...)        aten::_native_batch_norm_legit_functional(...) -> (results..., mean, var)
//     aten::t_(self!)                            aten::t(self), a view
//
// A form is found by name and schema among the operators of this process. The name is the same (for `out=`), has no
// last underscore, has "_functional", or is what the table says (OperatorRow::functional). Any overload will do that
// takes the same arguments in the same order, without the `out=` ones, and returns what they would have held.
//
// Answers are kept with the target and looked for again when an operator has been registered since. A pointer stays
// good as long as a copy of the target that was asked about. Thread-safe.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

// Writes nothing. Its results: first `fresh`, then `written`.
struct FunctionalForm {
  Target target;                    // what to call instead
  std::vector<uint16_t> arguments;  // its arguments, by position in the original
  std::vector<uint16_t> fresh;      // original results that are no written argument
  std::vector<uint16_t> written;    // written arguments (original positions), `out=` ones first
  friend bool operator==(const FunctionalForm& a, const FunctionalForm& b);
};
// nullptr if there is none, or nothing is written.
const FunctionalForm* functional_form(const Target& target);

// The in-place operator with the same arguments whose functional form the target is.
struct InPlaceForm {
  Target target;
  friend bool operator==(const InPlaceForm& a, const InPlaceForm& b);
};
const Target* in_place_form(const Target& target);

// An `out=` operator's overload that makes its results, and may write the rest of what is written: running statistics.
// It may take more arguments, which say what the results are like: dtype, layout, device and pin_memory of a factory.
// The `out=` tensors answer those themselves.
struct FreshForm {
  static constexpr uint16_t kOfResult = 0xFFFF;
  c10::OperatorHandle op;
  std::vector<uint16_t> arguments;  // by position in the original, or kOfResult
  friend bool operator==(const FreshForm& a, const FreshForm& b);
};
const FreshForm* fresh_form(const Target& target);

}  // namespace shadowgraph
