// Splits calls of operators over lists of tensors (_foreach_add_, _fused_adamw_) into calls of their elements. Internal
// to kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <span>

namespace shadowgraph {

// Returns what an operator over lists is for one element. That is the operator of single tensors (aten::add_.Tensor for
// aten::_foreach_add_.List), or the operator itself, which then gets tensors for lists (optimizer steps). Returns
// nothing if kernels are made of neither.
std::optional<c10::OperatorHandle> element_operator(const c10::OperatorHandle& op);

// Returns the number of elements, -1 where lists differ in length. An empty list stands for none.
int64_t list_length(std::span<const c10::IValue> arguments);
// Returns the arguments of `element`'s call for element `i`.
torch::jit::Stack element_arguments(const c10::OperatorHandle& element, std::span<const c10::IValue> arguments,
                                    int64_t i);

}  // namespace shadowgraph
