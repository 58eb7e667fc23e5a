// The last resort, if the user asked for it (FakeTensorOptions::unknown_operators_on_zeros): an operator that nobody
// has a rule for is run on real zeros. Internal to core/.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// The operands on the stack, from `begin` on, become fake results on `device`. Throws NoRuleError for an operator
// without a CPU kernel, one that changes geometry in place, returns views, or indexes with an operand: zeros would lie,
// or read out of bounds. What the kernel throws comes through.
void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device);

}  // namespace shadowgraph
