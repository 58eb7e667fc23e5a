// Unboxed kernels of matrix products, convolution and attention.
#include <ATen/Operators.h>

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
