// The out= forms that libtorch has no Meta kernel for.
//
// aten::searchsorted.Tensor_out does what aten::searchsorted.Tensor does and writes the result into a tensor it is given:
// resized if it does not fit, as it is otherwise. So one rule, for the functional form, serves both. What was resized is
// contiguous, or strided as the functional form's result if the operator is pointwise; where eager does something else
// still, the out= form has a rule of its own (core/rules/linalg.cpp) or a row in out_form.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

namespace shadowgraph {

// The functional form of `op`: the same operator's overload with all its arguments but those that it writes, and as many
// results. Nothing if `op` is no out= form, or there is none. Thread-safe; looks through all operators the first time.
std::optional<c10::OperatorHandle> functional_form(const c10::OperatorHandle& op);

// Calls `functional` with the arguments of `out_form` on the stack, and leaves the results that it was given there. Runs
// inside a kernel. Throws c10::Error if a result cannot be cast to what it is written to.
void run_out_form(const c10::OperatorHandle& out_form, const c10::OperatorHandle& functional, torch::jit::Stack* stack);

}  // namespace shadowgraph
