// Unboxed kernels of reductions, normalization, pooling, concatenation and indexing.
#include <ATen/Operators.h>

#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_reductions(torch::Library& aten) {
  // Reductions, normalization, pooling
  register_unboxed<op::sum, op::sum_dim_IntList, op::mean, op::mean_dim, op::amax, op::_softmax,
                   op::_softmax_backward_data, op::_log_softmax, op::_log_softmax_backward_data, op::native_layer_norm,
                   op::native_layer_norm_backward, op::native_batch_norm, op::native_batch_norm_backward,
                   op::cudnn_batch_norm, op::cudnn_batch_norm_backward, op::max_pool2d_with_indices,
                   op::max_pool2d_with_indices_backward, op::nll_loss_forward, op::nll_loss_backward>(aten);
  // Concatenation and indexing
  register_unboxed<op::cat, op::stack, op::index_Tensor, op::embedding, op::embedding_dense_backward,
                   op::slice_backward, op::select_backward>(aten);
}

}  // namespace shadowgraph
