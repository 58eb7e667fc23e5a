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

#include <ATen/core/stack.h>

#include "core/dispatch/operator_info.h"

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

}  // namespace shadowgraph
