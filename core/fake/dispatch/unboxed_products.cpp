// Unboxed kernels of matrix products, convolution and attention.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/mm_ops.h>

#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_products(torch::Library& aten) {
  register_unboxed<op::mm, op::bmm, op::addmm, op::baddbmm, op::convolution, op::convolution_backward,
                   op::_scaled_dot_product_flash_attention, op::_scaled_dot_product_flash_attention_backward,
                   op::_scaled_dot_product_efficient_attention, op::_scaled_dot_product_efficient_attention_backward,
                   op::_scaled_dot_product_cudnn_attention, op::_scaled_dot_product_cudnn_attention_backward,
                   op::_scaled_dot_product_flash_attention_for_cpu,
                   op::_scaled_dot_product_flash_attention_for_cpu_backward>(aten);
}

}  // namespace shadowgraph
