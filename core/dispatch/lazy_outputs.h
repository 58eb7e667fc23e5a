// Handles operators that write to a lazy conjugate or negative, and resize it. libtorch gives them a clone to write to,
// resizes the tensor to what became of the clone, and copies back (aten/src/ATen/native/MathBitsFallback.h). That
// resize calls the CPU's kernel, past the dispatcher. A fake would get a storage of real memory, and a recorder would
// not hear of it.
//
//     add.out(%0, %1, out=%2.conj())     %3 = clone(%2.conj())
//                                        add.out(%0, %1, out=%3)
//                                        resize_(%2.conj(), ..)      what is done here, by the operator, if %3 was resized
//                                        copy_(%2.conj(), %3)
//
// Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// Says whether calls of this operator may resize what they write: those have lazy_output_kernel on kCompositeKey.
bool may_resize_output(const c10::OperatorHandle& op);
void lazy_output_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The lazy tensor that a call under way writes, by the operator and the position of its argument.
// ThreadState::lazy_output holds it.
struct LazyOutput {
  const void* op;  // OperatorInfo::key
  size_t position;
  at::Tensor tensor;
};

// Returns the tensor behind the clone on `stack` that `info` is about to write, once; undefined if there is none.
at::Tensor take_lazy_output(const OperatorInfo& info, const torch::jit::Stack& stack);
// Resizes by aten::resize_, below autograd.
void resize_like(const at::Tensor& lazy, const at::Tensor& clone);

}  // namespace shadowgraph
