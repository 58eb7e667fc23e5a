// ---- Mixed dtypes on the CPU. at::TensorIterator copies each operand that does not have the common dtype before it
// looks at strides (`compute_types` in aten/src/ATen/TensorIterator.cpp), so the strides of the result follow from
// those of the copies. GPU and Meta kernels cast while loading and copy nothing.
//
//     f32[2,1,2]{2,4,1} - i32[2,1,2]{0,2,1}     CPU: {2,2,1}, after the copy i32 -> f32[2,1,2]{2,2,1}
//                                               GPU, Meta: {2,4,1}
//
// A copy preserves dense, non-overlapping strides, so only other operands matter.
// Internal to core/.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "core/fake/dispatch/operator_info.h"
#include "ir/operators/operator_forms.h"

namespace shadowgraph {

// Returns whether the operator's own kernel takes its result's strides from such an iterator. Composites do not count:
// their parts are separate calls.
bool copies_operands_on_cpu(const c10::OperatorHandle& op);

// Determines whether copies may occur for the operands seen.
class OperandDtypes {
 public:
  void see(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const c10::ScalarType dtype = tensor.scalar_type();
    differ_ |= seen_ && dtype != first_;
    integral_ |= c10::isIntegralType(dtype, /*includeBool=*/true);  // may become floating
    gaps_ |= !tensor.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
    first_ = dtype;
    seen_ = true;
  }
  bool may_be_copied() const { return gaps_ && (differ_ || integral_); }
  bool may_be_refused() const { return differ_ || integral_; }

 private:
  c10::ScalarType first_ = c10::ScalarType::Undefined;
  bool seen_ = false;
  bool differ_ = false;
  bool integral_ = false;
  bool gaps_ = false;
};

// Runs `kernel`, a rule or the Meta kernel of `info`, on the arguments on top of `stack`. The results have the CPU's
// strides. The kernel may run twice, but writes operands once.
using MetaKernel = void (*)(const OperatorInfo& info, torch::jit::Stack* stack);
void run_with_copied_operands(const OperatorInfo& info, torch::jit::Stack* stack, MetaKernel kernel);

// ---- out= forms without a Meta kernel
//
// aten::searchsorted.Tensor_out computes aten::searchsorted.Tensor and writes the result into `out`, resized if needed.
// So one rule, for the functional form, serves both. A resized result is contiguous, or has the functional result's
// strides if the operator is pointwise. Where eager differs, the out= form has its own rule
// (core/fake/rules/linalg.cpp) or facts.

// Returns the functional form of `op`, if all its returns are tensors; nullptr if `op` is not such an out= form.
// Thread-safe and cached.
const FreshForm* form_of_tensors(const Target& op);

// Calls `fresh` with the arguments of `out_form` on the stack, writes the results to its outputs and leaves those on
// the stack. Runs inside a kernel. Throws c10::Error if a result cannot be cast to its output.
void run_out_form(const c10::OperatorHandle& out_form, const FreshForm& fresh, torch::jit::Stack* stack);

// Replaces the operands on the stack by results, by the operator's route; fakes report "meta" meanwhile (KernelScope).
// Throws DataDependentError and NoRuleError, and rethrows kernel errors.
void run_on_meta(const OperatorInfo& info, torch::jit::Stack* stack);
// The same, without the operand copies of CPU kernels.
void run_kernel(const OperatorInfo& info, torch::jit::Stack* stack);

[[noreturn]] void throw_data_dependent(const OperatorInfo& info);
// Returns whether the error comes from a composite that copies a tensor to the CPU and reads its data pointer. libtorch
// only throws c10::Error, so TensorImpl's message identifies it.
bool reads_data(const c10::Error& error);

// Runs an operator without a rule on real zeros, if FakeTensorOptions::allow_fallback_kernels is set. Replaces the
// operands on the stack, from `begin` on, by fake results on `device`. Throws NoRuleError for an operator that has no
// CPU kernel, changes geometry in place, returns views, or indexes with an operand: zeros would be wrong or out of
// bounds. Rethrows kernel errors.
void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device);

}  // namespace shadowgraph
