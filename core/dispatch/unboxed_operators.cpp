// The operators that programs call most, by a count over training steps of the built-in models: these have kernels of
// their own C++ signature on kFakeKey. All others come through the boxed fallback, with the same results.
#include <ATen/Operators.h>

#include "core/dispatch/unboxed_call.h"

namespace shadowgraph {
namespace op = at::_ops;

UnboxedOperator::UnboxedOperator(const char* name, const char* overload, const std::type_info& symbolic,
                                 const std::type_info& plain)
    : op(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)), symbolic_(symbolic), plain_(plain) {}

const OperatorInfo* UnboxedOperator::find() {
  const OperatorInfo& found = OperatorInfo::of(op);
  const auto fits = [&](const std::shared_ptr<const ShapeRule>& rule) {
    return !rule || *rule->function_type == symbolic_ || *rule->function_type == plain_;
  };
  if (!fits(found.rule) || !fits(found.composite_rule)) return nullptr;
  info_.store(&found, std::memory_order_release);
  return &found;
}

void register_unboxed_operators(torch::Library& aten) {
  const auto add = [&]<class... Operators>() { (register_unboxed<Operators>(aten), ...); };
  // Factories and copies
  add.template
  operator()<op::empty_memory_format, op::empty_strided, op::empty_like, op::zeros, op::zeros_like, op::ones_like,
             op::full, op::clone, op::copy_, op::_to_copy, op::fill__Scalar, op::zero_, op::arange_start_step>();
  // Views
  add.template operator()<op::view, op::_unsafe_view, op::_reshape_alias, op::t, op::transpose_int, op::permute,
                          op::expand, op::slice_Tensor, op::select_int, op::unsqueeze, op::squeeze_dim, op::detach,
                          op::alias, op::as_strided, op::split_Tensor, op::unbind_int>();
  // Pointwise
  add.template operator()<op::add_Tensor, op::add_Scalar, op::sub_Tensor, op::sub_Scalar, op::mul_Tensor,
                          op::mul_Scalar, op::div_Tensor, op::div_Scalar, op::pow_Tensor_Scalar, op::where_self,
                          op::neg, op::exp, op::log, op::sqrt, op::rsqrt, op::reciprocal, op::tanh, op::sigmoid,
                          op::silu, op::gelu, op::relu, op::maximum, op::minimum>();
  add.template
  operator()<op::add__Tensor, op::add__Scalar, op::sub__Tensor, op::sub__Scalar, op::mul__Tensor, op::mul__Scalar,
             op::div__Tensor, op::div__Scalar, op::relu_, op::addcmul_, op::addcdiv_, op::lerp__Scalar>();
  add.template operator()<op::silu_backward, op::gelu_backward, op::tanh_backward, op::sigmoid_backward,
                          op::threshold_backward, op::native_dropout, op::native_dropout_backward>();
  // Products and attention
  add.template operator()<
      op::mm, op::bmm, op::addmm, op::baddbmm, op::convolution, op::convolution_backward,
      op::_scaled_dot_product_flash_attention, op::_scaled_dot_product_flash_attention_backward,
      op::_scaled_dot_product_efficient_attention, op::_scaled_dot_product_efficient_attention_backward,
      op::_scaled_dot_product_cudnn_attention, op::_scaled_dot_product_cudnn_attention_backward,
      op::_scaled_dot_product_flash_attention_for_cpu, op::_scaled_dot_product_flash_attention_for_cpu_backward>();
  // Reductions, normalization, pooling
  add.template operator()<
      op::sum, op::sum_dim_IntList, op::mean, op::mean_dim, op::amax, op::_softmax, op::_softmax_backward_data,
      op::_log_softmax, op::_log_softmax_backward_data, op::native_layer_norm, op::native_layer_norm_backward,
      op::native_batch_norm, op::native_batch_norm_backward, op::cudnn_batch_norm, op::cudnn_batch_norm_backward,
      op::max_pool2d_with_indices, op::max_pool2d_with_indices_backward, op::nll_loss_forward, op::nll_loss_backward>();
  // Joining and picking
  add.template operator()<op::cat, op::stack, op::index_Tensor, op::embedding, op::embedding_dense_backward,
                          op::slice_backward, op::select_backward>();
}

}  // namespace shadowgraph
