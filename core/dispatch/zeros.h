// Runs an operator that nobody has a rule for on real zeros: the last resort, if the user asked for it
// (FakeTensorOptions::unknown_operators_on_zeros). Internal to core/.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// Replaces the operands on the stack, from `begin` on, by fake results on `device`. Throws NoRuleError for an operator
// without a CPU kernel, one that changes geometry in place, returns views, or indexes with an operand. Zeros would lie
// there, or read out of bounds. Passes on what the kernel throws.
void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device);

}  // namespace shadowgraph
