// Handles operators of several dtypes on the CPU. at::TensorIterator there copies each operand without the common dtype
// to that dtype before it looks at strides (`compute_types` in aten/src/ATen/TensorIterator.cpp). The strides of the
// result follow from those of the copies. A GPU's kernel casts as it loads, and so do Meta kernels, which copy nothing.
//
//     f32[2,1,2]{2,4,1} - i32[2,1,2]{0,2,1}     CPU: {2,2,1}, after the copy i32 -> f32[2,1,2]{2,2,1}
//                                               GPU, Meta: {2,4,1}
//
// A copy keeps strides that leave no gap and do not overlap, so only operands that are laid out otherwise matter.
// Internal to core/.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "core/fake/dispatch/operator_info.h"
#include "ir/operators/operator_forms.h"

namespace shadowgraph {

// Says whether this operator's own kernel gets its result's strides from such an iterator. Operators made of others do
// not count: each of those is a call of its own.
bool copies_operands_on_cpu(const c10::OperatorHandle& op);

// Says whether it can matter for the operands seen.
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

// Runs `kernel`, a rule or the Meta kernel of `info`, on the arguments on top of `stack`. Leaves results laid out as
// the CPU's are. The kernel may run twice; what it writes it writes once.
using MetaKernel = void (*)(const OperatorInfo& info, torch::jit::Stack* stack);
void run_with_copied_operands(const OperatorInfo& info, torch::jit::Stack* stack, MetaKernel kernel);

// Serves the out= forms that libtorch has no Meta kernel for.
//
// aten::searchsorted.Tensor_out does what aten::searchsorted.Tensor does and writes the result into a tensor it is
// given, resized if it does not fit. So one rule, for the form that makes its result, serves both. A result that was
// resized is contiguous, or strided as that form's result if the operator is pointwise.
// Where eager does something else still, the out= form has a rule of its own (core/fake/rules/linalg.cpp) or a row in
// out_form.cpp.

// Returns the form of `op` that makes its results, if they are tensors and all that is returned. Returns nullptr if
// `op` is no out= form of that kind. Thread-safe, found once.
const FreshForm* form_of_tensors(const Target& op);

// Calls `fresh` with the arguments of `out_form` on the stack, and leaves the results that it was given there. Runs
// inside a kernel. Throws c10::Error if a result cannot be cast to what it is written to.
void run_out_form(const c10::OperatorHandle& out_form, const FreshForm& fresh, torch::jit::Stack* stack);

// Runs the kernel of one call on meta tensors: a rule, libtorch's own, or the answer to what the program reads.

// Replaces the operands on the stack by results, by the operator's route; fakes answer "meta" meanwhile (KernelScope).
// Throws DataDependentError and NoRuleError, and passes on what the kernel throws.
void run_on_meta(const OperatorInfo& info, torch::jit::Stack* stack);
// The same without copies of operands, which libtorch's kernels on the CPU may make.
void run_kernel(const OperatorInfo& info, torch::jit::Stack* stack);

[[noreturn]] void throw_data_dependent(const OperatorInfo& info);
// Says whether an error comes from a composite that copies a tensor to the CPU and reads it through a pointer. All
// errors of libtorch are c10::Error, so only the words of TensorImpl tell this one from the operator's own.
bool reads_data(const c10::Error& error);

// Runs an operator that nobody has a rule for on real zeros: the last resort, if the user asked for it
// (FakeTensorOptions::unknown_operators_on_zeros). Internal to core/.

// Replaces the operands on the stack, from `begin` on, by fake results on `device`. Throws NoRuleError for an operator
// without a CPU kernel, one that changes geometry in place, returns views, or indexes with an operand. Zeros would lie
// there, or read out of bounds. Passes on what the kernel throws.
void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device);

}  // namespace shadowgraph
