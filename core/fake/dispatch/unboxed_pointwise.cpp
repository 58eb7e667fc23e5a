// Unboxed kernels of pointwise operators.
#include <ATen/Operators.h>

#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_pointwise(torch::Library& aten) {
  register_unboxed<op::add_Tensor, op::add_Scalar, op::sub_Tensor, op::sub_Scalar, op::mul_Tensor, op::mul_Scalar,
                   op::div_Tensor, op::div_Scalar, op::pow_Tensor_Scalar, op::where_self, op::neg, op::exp, op::log,
                   op::sqrt, op::rsqrt, op::reciprocal, op::tanh, op::sigmoid, op::silu, op::gelu, op::relu,
                   op::maximum, op::minimum, op::add__Tensor, op::add__Scalar, op::sub__Tensor, op::sub__Scalar,
                   op::mul__Tensor, op::mul__Scalar, op::div__Tensor, op::div__Scalar, op::relu_, op::addcmul_,
                   op::addcdiv_, op::lerp__Scalar, op::silu_backward, op::gelu_backward, op::tanh_backward,
                   op::sigmoid_backward, op::threshold_backward, op::native_dropout, op::native_dropout_backward>(aten);
}

}  // namespace shadowgraph
