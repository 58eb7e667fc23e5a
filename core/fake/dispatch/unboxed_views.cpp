// Unboxed kernels of factories, copies and views.
#include <ATen/Operators.h>

#include "core/fake/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

void register_unboxed_views(torch::Library& aten) {
  // Factories and copies
  register_unboxed<op::empty_memory_format, op::empty_strided, op::empty_like, op::zeros, op::zeros_like, op::ones_like,
                   op::full, op::clone, op::copy_, op::_to_copy, op::fill__Scalar, op::zero_, op::arange_start_step>(
      aten);
  // Views
  register_unboxed<op::view, op::_unsafe_view, op::_reshape_alias, op::t, op::transpose_int, op::permute, op::expand,
                   op::slice_Tensor, op::select_int, op::unsqueeze, op::squeeze_dim, op::detach, op::alias,
                   op::as_strided, op::split_Tensor, op::unbind_int>(aten);
}

}  // namespace shadowgraph
