// Serves the out= forms that libtorch has no Meta kernel for.
//
// aten::searchsorted.Tensor_out does what aten::searchsorted.Tensor does and writes the result into a tensor it is
// given, resized if it does not fit. So one rule, for the form that makes its result, serves both. A result that was
// resized is contiguous, or strided as that form's result if the operator is pointwise.
// Where eager does something else still, the out= form has a rule of its own (core/rules/linalg.cpp) or a row in
// out_form.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ir/operators/operator_forms.h"

namespace shadowgraph {

// Returns the form of `op` that makes its results, if they are tensors and all that is returned. Returns nullptr if
// `op` is no out= form of that kind. Thread-safe, found once.
const FreshForm* form_of_tensors(const Target& op);

// Calls `fresh` with the arguments of `out_form` on the stack, and leaves the results that it was given there. Runs
// inside a kernel. Throws c10::Error if a result cannot be cast to what it is written to.
void run_out_form(const c10::OperatorHandle& out_form, const FreshForm& fresh, torch::jit::Stack* stack);

}  // namespace shadowgraph
