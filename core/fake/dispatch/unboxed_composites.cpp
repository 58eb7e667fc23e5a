// Unboxed kernels of the most frequent composite operators, on kCompositeKey.
#include <ATen/Operators.h>

#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_composites(torch::Library& aten) {
  register_unboxed_composite<
      op::linear, op::matmul, op::conv1d, op::conv2d, op::conv3d, op::scaled_dot_product_attention, op::layer_norm,
      op::batch_norm, op::rms_norm, op::dropout, op::softmax_int, op::log_softmax_int, op::cross_entropy_loss,
      op::nll_loss_nd, op::max_pool2d, op::adaptive_avg_pool2d, op::reshape, op::contiguous, op::flatten_using_ints,
      op::expand_as, op::to_dtype, op::to_dtype_layout, op::to_device, op::chunk, op::square>(aten);
}

}  // namespace shadowgraph
