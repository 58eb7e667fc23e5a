// The composite operators that programs call most: as unboxed_operators.cpp, on kCompositeKey.
#include <ATen/Operators.h>

#include "core/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_composites(torch::Library& aten) {
  const auto add = [&]<class... Operators>() { (register_unboxed_composite<Operators>(aten), ...); };
  add.template
  operator()<op::linear, op::matmul, op::conv1d, op::conv2d, op::conv3d, op::scaled_dot_product_attention,
             op::layer_norm, op::batch_norm, op::rms_norm, op::dropout, op::softmax_int, op::log_softmax_int,
             op::cross_entropy_loss, op::nll_loss_nd, op::max_pool2d, op::adaptive_avg_pool2d>();
  add.template operator()<op::reshape, op::contiguous, op::flatten_using_ints, op::expand_as, op::to_dtype,
                          op::to_dtype_layout, op::to_device, op::chunk, op::square>();
}

}  // namespace shadowgraph
