// Kernels of attention that nothing calls but programs themselves: other forms of those in attention.cpp, and what
// fused encoder layers are made of.
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>

#include "core/libtorch/later_arguments.h"
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using FusedResults = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

// For float8 queries, keys and values the result is bfloat16.
Tensor computed_in(const Tensor& query) {
  return query.scalar_type() == c10::kFloat8_e4m3fn ? rules::empty_like(query, c10::kBFloat16) : query;
}

FusedResults sdpa_flash_scaled(const Tensor& query, const Tensor& key, const Tensor& value,
                               const OptionalTensor& /*query_scale*/, const OptionalTensor& /*key_scale*/,
                               const OptionalTensor& /*value_scale*/, double dropout, bool causal, bool debug_mask,
                               std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention(computed_in(query), computed_in(key), computed_in(value), dropout,
                                                 causal, debug_mask, scale);
}

FiveTensors flash_scaled(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cum_seq_q,
                         const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
                         bool debug_mask, const OptionalTensor& /*query_scale*/, const OptionalTensor& /*key_scale*/,
                         const OptionalTensor& /*value_scale*/, std::optional<double> scale,
                         std::optional<int64_t> window_left, std::optional<int64_t> window_right,
                         const OptionalTensor& seqused_k, const OptionalTensor& alibi_slopes) {
  return at::_flash_attention_forward(computed_in(query), computed_in(key), computed_in(value), cum_seq_q, cum_seq_k,
                                      max_q, max_k, dropout, causal, debug_mask, scale, window_left, window_right,
                                      seqused_k, alibi_slopes);
}

Tensor flash_into(Tensor& /*out*/, const Tensor& query, const Tensor& key, const Tensor& value,
                  const OptionalTensor& cum_seq_q, const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k,
                  double dropout, bool causal, bool debug_mask, std::optional<double> scale,
                  std::optional<int64_t> window_left, std::optional<int64_t> window_right,
                  const OptionalTensor& seqused_k, const OptionalTensor& alibi_slopes,
                  const OptionalTensor& /*block_table*/, std::optional<int64_t> /*splits*/) {
  return std::get<1>(at::_flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout,
                                                  causal, debug_mask, scale, window_left, window_right, seqused_k,
                                                  alibi_slopes));
}

// [B, H, S, D], or [sum of lengths, H, D] with cumulative lengths (native/transformers/cuda/attention.cu,
// cudnn/MHA.cpp).
FusedResults cudnn_forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                           const OptionalTensor& cum_seq_q, const OptionalTensor& cum_seq_k, int64_t max_q,
                           int64_t max_k, bool logsumexp, double dropout, bool causal, bool debug_mask,
                           std::optional<double> scale) {
  if (!given(cum_seq_q)) {
    return at::_scaled_dot_product_cudnn_attention(query, key, value, bias, logsumexp, dropout, causal, debug_mask,
                                                   scale);
  }
  const int64_t rows = query.size(0);
  const int64_t heads = query.size(-2);
  return {rules::empty({rows, heads, value.size(-1)}, query),
          logsumexp ? rules::empty({rows, heads, 1}, c10::kFloat) : Tensor(),
          *cum_seq_q,
          given(cum_seq_k) ? *cum_seq_k : Tensor(),
          max_q,
          max_k,
          rules::empty({}, c10::kLong),
          rules::empty({}, c10::kLong),
          Tensor()};
}

ThreeTensors cudnn_backward(const Tensor& /*grad*/, const Tensor& query, const Tensor& key, const Tensor& value,
                            const Tensor& /*out*/, const Tensor& /*logsumexp*/, const Tensor& /*seed*/,
                            const Tensor& /*offset*/, const Tensor& /*bias*/, const Tensor& /*cum_seq_q*/,
                            const Tensor& /*cum_seq_k*/, int64_t /*max_q*/, int64_t /*max_k*/, double /*dropout*/,
                            bool /*causal*/, std::optional<double> /*scale*/) {
  return {rules::empty_like(query), rules::empty_like(key), rules::empty_like(value)};
}

// Projections of [B, T, 3 D] as heads: three parts of one tensor.
ThreeTensors heads_of_projection(const Tensor& qkv, const Tensor& bias, int64_t heads) {
  TORCH_CHECK(qkv.dim() == 3 && bias.dim() == 1 && qkv.size(2) == bias.size(0) && qkv.size(2) % (3 * heads) == 0,
              "expected [B, T, 3 D] and a bias of 3 D for ", heads, " heads, but got ", qkv.sizes(), " and ",
              bias.sizes());
  const Tensor all = rules::empty({3, qkv.size(0), heads, qkv.size(1), qkv.size(2) / (3 * heads)}, qkv);
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

}  // namespace

void register_attention_kernels(RuleRegistry& registry) {
  registry.add("aten::_scaled_dot_product_flash_attention.quantized", &sdpa_flash_scaled);
  registry.add("aten::_flash_attention_forward.quantized", &flash_scaled);
  registry.add("aten::_flash_attention_forward_no_dropout_inplace", &flash_into);
  registry.add("aten::_cudnn_attention_forward",
               &WithLaterArguments<at::_ops::_cudnn_attention_forward, cudnn_forward>::run);
  registry.add("aten::_cudnn_attention_backward", &cudnn_backward);
  registry.add("aten::_transform_bias_rescale_qkv", &heads_of_projection);
}

}  // namespace shadowgraph::rules
