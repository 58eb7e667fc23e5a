// Operators over lists of tensors (_foreach_add_, _fused_adamw_), call by call of their elements. Internal to kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <span>

namespace shadowgraph {

// What an operator over lists is for one element: the operator of single tensors (aten::add_.Tensor for
// aten::_foreach_add_.List), or the operator itself, which is then given tensors for lists (optimizer steps). Empty: it
// is none that kernels are made of.
std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op);

// The number of elements, -1 where lists differ in length. An empty list stands for none.
int64_t list_length(std::span<const c10::IValue> arguments);
// The arguments of `element`'s call for element `i`.
torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i);

}  // namespace shadowgraph
