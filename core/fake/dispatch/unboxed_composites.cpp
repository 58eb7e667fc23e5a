// Unboxed kernels of the most frequent composite operators, on kCompositeKey.
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_avg_pool2d_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/chunk_ops.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/conv1d_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/conv3d_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/dropout_ops.h>
#include <ATen/ops/expand_as_ops.h>
#include <ATen/ops/flatten_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_softmax_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/max_pool2d_ops.h>
#include <ATen/ops/nll_loss_nd_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/rms_norm_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/square_ops.h>
#include <ATen/ops/to_ops.h>

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
