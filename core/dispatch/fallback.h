// The boxed kernels that carry fake tensors. Internal to core/.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// On kFakeKey: every operator with a fake operand, or with the key included by a mode.
void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// On kCompositeKey, for CompositeImplicitAutograd operators: shows the call to the observer, then decomposes it.
void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Whether the operator's composite rule runs in place of its decomposition for tensors on `device`: on CUDA, for
// attention on XPU and MPS, for LSTMs on a CPU that is not this machine's. In a mode.
bool composite_rule_replaces(const OperatorInfo& info, c10::DeviceType device);

// Whether calls of this composite operator are shown: not those that only ask for metadata.
bool is_worth_a_region(const c10::OperatorHandle& op);

}  // namespace shadowgraph
