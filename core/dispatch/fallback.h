// Declares the boxed kernel that carries fake tensors. Internal to core/.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// Runs on kFakeKey, for every operator with a fake operand, or with the key included by a mode.
void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Says whether a call of an operator that is direct on the CPU is one kernel of the CPU's.
bool runs_directly(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);

}  // namespace shadowgraph
