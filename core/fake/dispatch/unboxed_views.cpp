// Unboxed kernels of factories, copies and views.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/empty_ops.h>
#include <ATen/ops/empty_strided_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>

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
