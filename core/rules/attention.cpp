// Scaled dot product attention.
//
// On a CPU libtorch's own composite picks between one fused operator and the mathematical definition by looking at the
// operands. So fakes need nothing but rules for the operator and its backward. On CUDA the choice is made inside
// libtorch_cuda, which may not be there. sdpa_on_gpu repeats it for the profiled device, then pads and converts the
// operands as the composite does and calls the chosen operator above autograd (attention_choice.cpp).
//
// The random state of a dropout (seed and offset) is reported on the GPU. Eager keeps it on the CPU unless a CUDA graph
// is being captured: 8 to 16 bytes.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/libtorch/attention_checks.h"
#include "core/rules/attention_choice.h"
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::ScalarType;
using at::SDPBackend;
using c10::IntArrayRef;
// Sizes among results are SymInt in C++ too. The results are output, logsumexp, cumulative lengths of q and k (nested
// tensors only), longest q and k, seed, offset, debug mask.
using FusedResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                                at::Tensor, at::Tensor>;

int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const OptionalTensor& mask, double dropout, bool is_causal, std::optional<double> scale,
                         bool enable_gqa) {
  if (attention_adds_batch(query, key, value)) {
    return fused_sdp_choice(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), attention_mask_with_batch(mask),
                            dropout, is_causal, scale, enable_gqa);
  }
  const bool has_mask = given(mask);
  const c10::DeviceType device = pretended_device().type();
  if (device == c10::DeviceType::CUDA || device == c10::DeviceType::XPU || device == c10::DeviceType::MPS) {
    return static_cast<int64_t>(choose_attention_kernel(
        device, {query, key, value, has_mask ? mask : std::nullopt, dropout, is_causal, enable_gqa}));
  }
  if (has_mask && mask->requires_grad()) return static_cast<int64_t>(SDPBackend::math);
  return at::native::_fused_sdp_choice_cpp(stand_in(query), stand_in(key), stand_in(value),
                                           has_mask ? OptionalTensor(stand_in(*mask)) : std::nullopt, dropout,
                                           is_causal, scale, enable_gqa);
}

// ---- The composite on a GPU

// validate_sdpa_input (native/transformers/attention.cpp), word for word.
void check_operands(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const OptionalTensor& mask) {
  TORCH_CHECK(query.dtype() == key.dtype() && query.dtype() == value.dtype(),
              "Expected query, key, and value to have the same dtype, but got query.dtype: ", query.dtype(),
              " key.dtype: ", key.dtype(), " and value.dtype: ", value.dtype(), " instead.");
  TORCH_CHECK(query.device() == key.device() && query.device() == value.device(),
              "Expected query, key, and value to have the same device type, but got query.device: ", query.device(),
              " key.device: ", key.device(), " and value.device: ", value.device(), " instead.");
  TORCH_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2,
              "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: ", query.dim(),
              " key.dim: ", key.dim(), " and value.dim: ", value.dim(), " instead.");
  TORCH_CHECK(!given(mask) || mask->scalar_type() == at::kBool || mask->scalar_type() == at::kFloat ||
                  mask->dtype() == query.dtype(),
              "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: ",
              given(mask) ? mask->dtype() : query.dtype(), " and  query.dtype: ", query.dtype(), " instead.");
}

// True keeps, False masks: 0 and -inf.
OptionalTensor additive_mask(const OptionalTensor& mask, ScalarType dtype) {
  if (!given(mask)) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask;
  return at::where(*mask, 0.0,
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(),
                                     at::TensorOptions().dtype(dtype).device(mask->device())));
}

// The flash kernel wants a head dimension that is a multiple of 8.
at::Tensor padded_head(const at::Tensor& tensor) {
  const int64_t excess = tensor.size(-1) % 8;
  return excess == 0 ? tensor : at::pad(tensor, {0, 8 - excess});
}

// The efficient kernel loads the bias in vectors of 8: rows that do not start at a multiple of 8 are copied to longer
// ones. Then the bias is broadcast to the scores.
at::Tensor aligned_bias(at::Tensor bias, const at::Tensor& query, const at::Tensor& key) {
  constexpr int64_t kAlignment = 8;
  bool aligned = bias.stride(-1) == 1;
  for (int64_t d = 0; d + 1 < bias.dim(); ++d) aligned = aligned && bias.stride(d) % kAlignment == 0;
  if (!aligned) {
    const int64_t last = bias.size(-1);
    bias = at::pad(bias, {0, kAlignment - last % kAlignment}).slice(-1, 0, last);
  }
  return bias.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

at::Tensor sdpa_on_gpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const OptionalTensor& attention_mask, double dropout, bool is_causal,
                       std::optional<double> scale, bool enable_gqa) {
  check_operands(query, key, value, attention_mask);
  if (query.numel() == 0 || key.numel() == 0 || value.numel() == 0) {
    c10::DimVector sizes(query.sizes());
    sizes.back() = value.size(-1);
    return at::zeros(sizes, query.options()) + (query.sum() + key.sum() + value.sum()) * 0;
  }
  if (attention_adds_batch(query, key, value)) {
    const at::Tensor queries = query.unsqueeze(0), keys = key.unsqueeze(0), values = value.unsqueeze(0);
    return sdpa_on_gpu(queries, keys, values, attention_mask_with_batch(attention_mask), dropout, is_causal, scale,
                       enable_gqa)
        .squeeze(0);
  }
  const OptionalTensor given_mask = given(attention_mask) ? attention_mask : std::nullopt;
  const SDPBackend backend =
      choose_attention_kernel(query.device().type(), {query, key, value, given_mask, dropout, is_causal, enable_gqa});
  OptionalTensor mask = additive_mask(given_mask, query.scalar_type());
  const bool needs_backward =
      at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
  switch (backend) {
    case SDPBackend::cudnn_attention:
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(query, key, value, mask, needs_backward, dropout,
                                                                 is_causal, /*return_debug_mask=*/false, scale));
    case SDPBackend::flash_attention: {
      const int64_t head = query.size(-1);
      const double original_scale = scale ? *scale : 1.0 / std::sqrt(static_cast<double>(head));
      const at::Tensor output = std::get<0>(
          at::_scaled_dot_product_flash_attention(padded_head(query), padded_head(key), padded_head(value), dropout,
                                                  is_causal, /*return_debug_mask=*/false, original_scale));
      return output.size(-1) == head ? output : output.slice(-1, 0, head);
    }
    case SDPBackend::efficient_attention:
      if (mask) mask = aligned_bias(*mask, query, key);
      return std::get<0>(at::_scaled_dot_product_efficient_attention(query, key, value, mask, needs_backward, dropout,
                                                                     is_causal, scale));
    case SDPBackend::overrideable:
      return std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(
          query, key, value, mask, dropout, is_causal, /*return_debug_mask=*/false, scale));
    default:
      return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal,
                                                                /*dropout_mask=*/std::nullopt, scale, enable_gqa));
  }
}

// ---- Results

at::Tensor philox_word() { return rules::empty({}, at::kLong); }

// [B, H, S, D] laid out as [B, S, H, D]
at::Tensor empty_bshd(IntArrayRef sizes, ScalarType dtype) {
  return rules::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, dtype).transpose(1, 2);
}

// empty_like of a [B, S, H, D] view, seen as [B, H, S, D] again.
at::Tensor empty_like_bshd(const at::Tensor& tensor) {
  return rules::empty_like(tensor.transpose(1, 2)).transpose(1, 2);
}

// ATen/native/transformers/sdp_utils.h: dense, its dimensions in q's order, broadcast ones last.
at::Tensor empty_with_layout_of(const at::Tensor& query, IntArrayRef sizes) {
  if (query.sizes() == sizes) return rules::empty_like(query);
  c10::DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int64_t d) {
    return query.stride(d) == 0 ? std::numeric_limits<int64_t>::max() : query.stride(d);
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
  c10::DimVector strides(sizes.size());
  int64_t stride = 1;
  for (const int64_t d : order) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= sizes[static_cast<size_t>(d)];
  }
  return rules::empty_strided(sizes, strides, query.scalar_type());
}

// oneDNN's kernel on XPU. Log-sum-exp and debug mask are not made; seed and offset are not used.
FusedResults sdpa_overrideable(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const OptionalTensor& bias, double dropout, bool is_causal, bool return_debug_mask,
                               std::optional<double> scale) {
  const at::Tensor output = empty_with_layout_of(query, {query.size(0), query.size(1), query.size(2), value.size(3)});
  return {output, {}, {}, {}, query.size(2), key.size(2), philox_word(), philox_word(), {}};
}

// ---- CPU (native/transformers/attention.cpp, native/cpu/FlashAttentionKernel.cpp)

TwoTensors flash_for_cpu(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                         bool is_causal, const OptionalTensor& mask, std::optional<double> scale) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {B, H, T, K}");
  TORCH_CHECK(dropout == 0.0, "scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0");
  TORCH_CHECK(query.size(3) == value.size(3) && key.size(3) == value.size(3),
              "scaled_dot_product_attention_flash_attention: Q/K/V should have the same head size");
  const ScalarType accumulate = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {rules::empty_like(query),
          rules::empty({query.size(0), query.size(2), query.size(1)}, accumulate).transpose(1, 2)};
}

ThreeTensors flash_for_cpu_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
                                    double dropout, bool is_causal, const OptionalTensor& mask,
                                    std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_bshd(query.sizes(), query.scalar_type()), empty_bshd(key.sizes(), key.scalar_type()),
          empty_bshd(value.sizes(), value.scalar_type())};
}

// ---- CUDA. Sizes and dtypes also as torch/_meta_registrations.py of 2.13.0 has them.

// Two 64-bit words of Philox state, and one operand that is no longer used.
at::Tensor flash_random_state() { return rules::empty({2}, at::kUInt64); }
at::Tensor flash_unused() { return rules::empty({}, at::kUInt64); }

at::Tensor flash_debug_mask(const at::Tensor& query, int64_t heads, int64_t longest_query, int64_t longest_key,
                            bool wanted) {
  if (!wanted) return rules::empty({0}, query);
  const int64_t block = query.size(-1) > 64 ? 128 : 256;
  const int64_t columns = longest_key <= 128 ? 128 : longest_key <= 256 ? 256 : (longest_query + block - 1) / block;
  return rules::empty({query.size(0), heads, longest_query, columns}, query);
}

FusedResults sdpa_flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                        bool is_causal, bool return_debug_mask, std::optional<double> scale) {
  const int64_t heads = query.size(1);
  const int64_t longest_query = query.size(2);
  const int64_t longest_key = key.size(2);
  return {empty_like_bshd(query),
          rules::empty({query.size(0), heads, longest_query}, at::kFloat),
          at::Tensor(),
          at::Tensor(),
          longest_query,
          longest_key,
          flash_random_state(),
          flash_unused(),
          flash_debug_mask(query, heads, longest_query, longest_key, return_debug_mask)};
}

ThreeTensors sdpa_flash_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
                                 const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, int64_t max_q, int64_t max_k,
                                 double dropout, bool is_causal, const at::Tensor& philox_seed,
                                 const at::Tensor& philox_offset, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_like_bshd(query), empty_like_bshd(key), empty_like_bshd(value)};
}

// Rows of logsumexp are padded so that the backward kernel can load them in blocks (kAlignLSE).
int64_t efficient_logsumexp_length(int64_t longest_query, bool wanted) {
  constexpr int64_t kAlignment = 32;
  return wanted ? rounded_up(longest_query, kAlignment) : 0;
}

// Rows of 16 elements and more, cut to the bias' own length.
at::Tensor efficient_bias_gradient(const at::Tensor& bias) {
  constexpr int64_t kAlignment = 16;
  c10::DimVector sizes(bias.sizes());
  const int64_t last = sizes.back();
  sizes.back() = rounded_up(last, kAlignment);
  return rules::empty(sizes, bias).slice(-1, 0, last);
}

FourTensors sdpa_efficient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const OptionalTensor& bias, bool compute_logsumexp, double dropout, bool is_causal,
                           std::optional<double> scale) {
  const int64_t length = efficient_logsumexp_length(query.size(2), compute_logsumexp);
  return {empty_bshd({query.size(0), query.size(1), query.size(2), value.size(3)}, query.scalar_type()),
          rules::empty({query.size(0), query.size(1), length}, at::kFloat), philox_word(), philox_word()};
}

FourTensors sdpa_efficient_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const at::Tensor& bias, const at::Tensor& out,
                                    const at::Tensor& logsumexp, const at::Tensor& philox_seed,
                                    const at::Tensor& philox_offset, double dropout, std::array<bool, 4> mask,
                                    bool is_causal, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_bshd(query.sizes(), query.scalar_type()), empty_bshd(key.sizes(), key.scalar_type()),
          empty_bshd(value.sizes(), value.scalar_type()),
          bias.defined() && mask[3] ? efficient_bias_gradient(bias) : at::Tensor()};
}

// native/cudnn/MHA.cpp; without backward no logsumexp is made.
FusedResults sdpa_cudnn(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const OptionalTensor& bias, bool compute_logsumexp, double dropout, bool is_causal,
                        bool return_debug_mask, std::optional<double> scale) {
  const int64_t sizes[] = {query.size(0), query.size(1), query.size(2), value.size(3)};
  at::Tensor logsumexp;
  if (compute_logsumexp) logsumexp = rules::empty({sizes[0], sizes[1], sizes[2], 1}, at::kFloat);
  return {empty_with_layout_of(query, sizes),
          logsumexp,
          at::Tensor(),
          at::Tensor(),
          query.size(2),
          key.size(2),
          philox_word(),
          philox_word(),
          at::Tensor()};
}

ThreeTensors sdpa_cudnn_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                                 const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
                                 const at::Tensor& philox_seed, const at::Tensor& philox_offset, const at::Tensor& bias,
                                 const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, int64_t max_q, int64_t max_k,
                                 double dropout, bool is_causal, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {rules::empty_like(query), rules::empty_like(key), rules::empty_like(value)};
}

// ---- The kernels below: [B, S, H, D], or [sum of lengths, H, D] with cumulative lengths.

FiveTensors flash_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const OptionalTensor& cum_seq_q, const OptionalTensor& cum_seq_k, int64_t max_q,
                          int64_t max_k, double dropout, bool is_causal, bool return_debug_mask,
                          std::optional<double> scale, std::optional<int64_t> window_left,
                          std::optional<int64_t> window_right, const OptionalTensor& seqused_k,
                          const OptionalTensor& alibi_slopes, const OptionalTensor& block_table,
                          std::optional<int64_t> num_splits) {
  const int64_t heads = query.size(-2);
  const bool packed = given(cum_seq_q);
  return {rules::empty_like(query),
          packed ? rules::empty({heads, query.size(0)}, at::kFloat)
                 : rules::empty({query.size(0), heads, query.size(1)}, at::kFloat),
          flash_random_state(), flash_unused(),
          flash_debug_mask(query, heads, packed ? max_q : query.size(1), given(cum_seq_k) ? max_k : key.size(1),
                           return_debug_mask)};
}

ThreeTensors flash_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
                            const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, int64_t max_q, int64_t max_k,
                            double dropout, bool is_causal, const at::Tensor& rng_state, const at::Tensor& unused,
                            std::optional<double> scale, std::optional<int64_t> window_left,
                            std::optional<int64_t> window_right) {
  return {rules::empty_like(query), rules::empty_like(key), rules::empty_like(value)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const OptionalTensor& bias,
    const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k, std::optional<int64_t> max_q,
    std::optional<int64_t> max_k, double dropout, int64_t custom_mask_type, bool compute_logsumexp,
    std::optional<double> scale, const OptionalTensor& seqlen_k, std::optional<int64_t> window_size) {
  const bool packed = given(cu_seqlens_q);
  TORCH_CHECK(!packed || max_q.has_value(), "_efficient_attention_forward: cu_seqlens_q needs max_seqlen_q");
  const int64_t longest_query = packed ? *max_q : query.size(1);
  const int64_t longest_key = max_k.value_or(key.size(1));
  const int64_t batch = packed ? cu_seqlens_q->size(0) - 1 : query.size(0);
  return {
      rules::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query),
      rules::empty({batch, query.size(2), efficient_logsumexp_length(longest_query, compute_logsumexp)}, at::kFloat),
      philox_word(),
      philox_word(),
      longest_query,
      longest_key};
}

FourTensors efficient_backward(const at::Tensor& grad_out, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const OptionalTensor& bias, const at::Tensor& out,
                               const OptionalTensor& cu_seqlens_q, const OptionalTensor& cu_seqlens_k, int64_t max_q,
                               int64_t max_k, const at::Tensor& logsumexp, double dropout,
                               const at::Tensor& philox_seed, const at::Tensor& philox_offset, int64_t custom_mask_type,
                               bool bias_requires_grad, std::optional<double> scale,
                               std::optional<int64_t> num_splits_key, std::optional<int64_t> window_size,
                               bool shared_storage) {
  at::Tensor bias_gradient;
  if (given(bias) && bias_requires_grad) bias_gradient = efficient_bias_gradient(*bias);
  if (shared_storage) {
    TORCH_CHECK(query.size(1) == key.size(1),
                "`shared_storage_dqdkdv` is only supported when Q/K/V share the same "
                "sequence length");
    TORCH_CHECK(query.size(3) == key.size(3), "embedding dim must match for `shared_storage_dqdkdv");
    const at::Tensor chunk = rules::empty({query.size(0), query.size(1), 3, query.size(2), query.size(3)}, query);
    return {chunk.select(2, 0), chunk.select(2, 1), chunk.select(2, 2), bias_gradient};
  }
  return {rules::empty(query.sizes(), query), rules::empty(key.sizes(), key), rules::empty(value.sizes(), value),
          bias_gradient};
}

// ---- The inference fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention

TwoTensors native_multi_head_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                       int64_t embedding, int64_t heads, const at::Tensor& qkv_weight,
                                       const at::Tensor& qkv_bias, const at::Tensor& projection_weight,
                                       const at::Tensor& projection_bias, const OptionalTensor& mask, bool need_weights,
                                       bool average_weights, std::optional<int64_t> mask_type) {
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(query.size(2) == embedding, "passed-in embed_dim ", embedding, " didn't match last dim of query ",
              query.size(2));
  TORCH_CHECK(embedding % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  const int64_t batch = query.size(0);
  const int64_t length = query.size(1);
  at::Tensor weights;
  if (need_weights) {
    weights = average_weights ? rules::empty({batch, length, length}, query)
                              : rules::empty({batch, heads, length, length}, query);
  }
  return {rules::empty({batch, length, projection_weight.size(0)}, query), weights};
}

at::Tensor transformer_encoder_layer(const at::Tensor& source, int64_t embedding, int64_t heads,
                                     const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                     const at::Tensor& projection_weight, const at::Tensor& projection_bias,
                                     bool use_gelu, bool norm_first, double eps, const at::Tensor& norm_weight_1,
                                     const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2,
                                     const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1,
                                     const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
                                     const at::Tensor& ffn_bias_2, const OptionalTensor& mask,
                                     std::optional<int64_t> mask_type) {
  return rules::empty(source.sizes(), source);
}

}  // namespace

void register_attention(RuleRegistry& registry) {
  registry.add_composite("aten::scaled_dot_product_attention", &sdpa_on_gpu);
  registry.add("aten::_fused_sdp_choice", &fused_sdp_choice);
  registry.add("aten::_scaled_dot_product_flash_attention_for_cpu", &flash_for_cpu);
  registry.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", &flash_for_cpu_backward);
  registry.add("aten::_scaled_dot_product_flash_attention", &sdpa_flash);
  registry.add("aten::_scaled_dot_product_flash_attention_backward", &sdpa_flash_backward);
  registry.add("aten::_scaled_dot_product_efficient_attention", &sdpa_efficient);
  registry.add("aten::_scaled_dot_product_efficient_attention_backward", &sdpa_efficient_backward);
  registry.add("aten::_scaled_dot_product_cudnn_attention", &sdpa_cudnn);
  registry.add("aten::_scaled_dot_product_cudnn_attention_backward", &sdpa_cudnn_backward);
  registry.add("aten::_scaled_dot_product_fused_attention_overrideable", &sdpa_overrideable);
  registry.add("aten::_flash_attention_forward", &flash_forward);
  registry.add("aten::_flash_attention_backward", &flash_backward);
  registry.add("aten::_efficient_attention_forward", &efficient_forward);
  registry.add("aten::_efficient_attention_backward", &efficient_backward);
  registry.add("aten::_native_multi_head_attention", &native_multi_head_attention);
  registry.add("aten::_transformer_encoder_layer_fwd", &transformer_encoder_layer);
}

}  // namespace shadowgraph::rules
