// Unboxed kernels of pointwise operators.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_dropout_backward_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/where_ops.h>

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
