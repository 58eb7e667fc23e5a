// Declares what happens to composite operators before they decompose: they are shown, refused or replaced by a rule.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// Runs on kCompositeKey, for CompositeImplicitAutograd operators: shows the call to the observer, then decomposes it.
void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Says whether the operator's composite rule runs in place of its decomposition for tensors on `device`, in a mode. It
// does on CUDA, for attention on XPU and MPS, and for LSTMs on a CPU that is not this machine's.
bool composite_rule_replaces(const OperatorInfo& info, c10::DeviceType device);

// Says whether calls of this composite operator are shown: not those that only ask for metadata.
bool is_worth_a_region(const c10::OperatorHandle& op);

}  // namespace shadowgraph
