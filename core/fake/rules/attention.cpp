// Scaled dot product attention: selection of the kernel, and the results of each.
#include "core/libtorch/attention.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_flash_attention_forward.h>
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
#include <c10/core/DeviceType.h>
#include <c10/util/env.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

using at::SDPBackend;

// ---- Kernel selection follows sdp_utils.cpp (native/transformers/cuda); differences between libtorch versions are in
// core/libtorch/attention.h. Checks in libtorch's header are called, those in the .cpp are repeated here. On compute
// capability 9 and 10 with cuDNN newer than 9.15, cuDNN comes first; otherwise flash, efficient, math, cuDNN.
//
// XPU and MPS select through a function that a CPU build of libtorch lacks, so the same composite serves them:
//   XPU  oneDNN's fused kernel in inference where it is applicable, otherwise the math implementation
//        (native/mkldnn/xpu/Attention.cpp). Its flash kernel, for some devices and 16-bit dtypes, is not simulated.
//   MPS  the math implementation, as in training; in inference MPS has a single operator for it.

bool compute_capability_between(int low, int high) {
  const int here = device_profile().sm_major * 10 + device_profile().sm_minor;
  return low <= here && here <= high;
}

bool has_dtype(const sdp::sdp_params& params, std::initializer_list<ScalarType> allowed) {
  const ScalarType dtype = params.query.scalar_type();
  return dtype == params.key.scalar_type() && dtype == params.value.scalar_type() &&
         std::find(allowed.begin(), allowed.end(), dtype) != allowed.end();
}

bool has_low_precision(const sdp::sdp_params& params) {
  return device_profile().sm_major >= 8 ? has_dtype(params, {at::kHalf, at::kBFloat16})
                                        : has_dtype(params, {at::kHalf});
}

// Limit of the second and third grid dimension.
bool fits_in_grid(const sdp::sdp_params& params) {
  constexpr int64_t kLargest = 65535;
  return params.query.size(0) <= kLargest && params.query.size(1) <= kLargest;
}

bool can_use_flash(const sdp::sdp_params& params) {
  const DeviceProfile& device = device_profile();
  if (!device.flash_attention || !at::globalContext().userEnabledFlashSDP()) return false;
  if (!sdp::check_tensor_shapes(params, false) || !sdp::check_for_attn_mask(params, false)) return false;
  const int64_t head = params.query.size(3);
  if (params.key.size(3) != head || params.value.size(3) != head || head > 256) return false;
  if (!compute_capability_between(80, 121)) return false;
  if ((compute_capability_between(86, 89) || compute_capability_between(120, 121)) &&
      sdp::input_requires_grad(params) && head > 192 && (head <= 224 || params.dropout > 0.0)) {
    return false;
  }
  if (params.is_causal && params.query.size(2) != params.key.size(2)) return false;
  const bool dtype_fits = device.sm_major >= 9 && at::globalContext().userEnabledFA3SDP()
                              ? has_dtype(params, {at::kFloat8_e4m3fn, at::kHalf, at::kBFloat16})
                              : has_low_precision(params);
  return dtype_fits && attention_heads_fit</*groups=*/true, /*same_heads=*/true>(params) &&
         (!kFlashAttentionHasLargestGrid || fits_in_grid(params)) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>(params, false);
}

// minimum_gemm_alignment, in elements
int64_t head_alignment(const sdp::sdp_params& params) {
  const ScalarType dtype = params.query.scalar_type();
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const int major = device_profile().sm_major;
  const int64_t alignment = major >= 8 ? 4 : 1;
  const bool tensor_cores = major >= 8 || (major >= 7 && half);
  return tensor_cores ? std::max<int64_t>(alignment, half ? 8 : 4) : alignment;
}

// Returns whether all operands start at a multiple of `alignment` elements.
bool begin_aligned(const sdp::sdp_params& params, int64_t alignment) {
  if (!kEfficientAttentionWantsAlignment || device_profile().sm_major < 8) return true;
  const auto begins = [&](const Tensor& tensor) {
    return tensor.numel() == 0 || tensor.storage_offset() % alignment == 0;
  };
  return begins(params.query) && begins(params.key) && begins(params.value);
}

bool can_use_efficient(const sdp::sdp_params& params) {
  if (!device_profile().efficient_attention || !at::globalContext().userEnabledMemEfficientSDP()) return false;
  if (!compute_capability_between(50, 121) || !sdp::check_tensor_shapes(params, false)) return false;
  const int64_t head = params.query.size(3);
  const int64_t value_head = params.value.size(3);
  const int64_t alignment = head_alignment(params);
  if (params.key.size(3) != head || head <= 0 || head % alignment != 0 || value_head <= 0 ||
      value_head % alignment != 0 || !begin_aligned(params, alignment)) {
    return false;
  }
  const bool dtype_fits = device_profile().sm_major >= 8 ? has_dtype(params, {at::kHalf, at::kFloat, at::kBFloat16})
                                                         : has_dtype(params, {at::kHalf, at::kFloat});
  return dtype_fits && sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>(params, false) &&
         attention_heads_fit<kEfficientAttentionTakesGroups, /*same_heads=*/true>(params);
}

// Head dimensions of queries and values that cuDNN supports, in backward too.
bool cudnn_supports_heads(const sdp::sdp_params& params, int64_t head, int64_t value_head) {
  const DeviceProfile& device = device_profile();
  if (head % 8 != 0 || value_head % 8 != 0) return false;
  if (head <= 128 && value_head <= 128) return true;
  if (!compute_capability_between(90, 90) && device.sm_major != 10) return false;
  const bool deep = head == 192 && value_head == 128;
  const bool wide = kCudnnAttentionTakesWideHeads && device.cudnn_version > 92200 &&
                    (device.sm_major != 10 || device.sm_minor != 7 || device.cudnn_version > 92500);
  if (!wide) return deep && device.cudnn_version >= 91100;
  if (head > 256 || value_head > 256) return false;
  return deep || (head == 256 && value_head == 256) || !sdp::input_requires_grad(params);
}

bool can_use_cudnn(const sdp::sdp_params& params) {
  const DeviceProfile& device = device_profile();
  if (!device.cudnn || !device.cudnn_attention || device.cudnn_version < 90000) return false;
  if (!at::globalContext().userEnabledCuDNNSDP()) return false;
  if (params.dropout > 0.0 && device.cudnn_version > 91100 && device.cudnn_version < 91400) return false;
  if (!sdp::check_tensor_shapes(params, false)) return false;
  if (at::globalContext().deterministicAlgorithms() && !at::globalContext().deterministicAlgorithmsWarnOnly()) {
    return false;
  }
  if (!has_low_precision(params) || !sdp::check_attn_mask_shape(params, false)) return false;
  if (!compute_capability_between(80, 121)) return false;
  if (params.dropout * 16.0 != std::floor(params.dropout * 16.0)) return false;
  if (!sdp::check_nonzero_sequence_lengths_dense(params, false) ||
      !sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>(params, false) ||
      !attention_heads_fit</*groups=*/true, /*same_heads=*/false>(params)) {
    return false;
  }
  if (kCudnnAttentionHasLargestGrid && !fits_in_grid(params)) return false;
  if (!cudnn_supports_heads(params, params.query.size(3), params.value.size(3))) return false;
  if (params.query.size(2) == 1 && cudnn_attention_refuses_one_query(device.cudnn_version, device.sm_major))
    return false;
  return params.key.size(2) != 1 && (params.dropout == 0.0 || params.query.size(2) != 1);
}

// check_prefer_cudnn_attention
bool prefers_cudnn() {
  static const bool deprioritized = c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") == true;
  const DeviceProfile& device = device_profile();
  return !deprioritized && device.cudnn && device.cudnn_attention && device.cudnn_version > 91500 &&
         (device.sm_major == 9 || device.sm_major == 10);
}

SDPBackend choose_on_cuda(const sdp::sdp_params& params) {
  const auto configured = at::globalContext().sDPPriorityOrder();
  std::vector<SDPBackend> order(configured.begin(), configured.end());
  // Eager inserts cuDNN at the front, unless the user has set an order.
  if (order.front() == SDPBackend::flash_attention && prefers_cudnn()) {
    order.insert(order.begin(), SDPBackend::cudnn_attention);
  }
  for (const SDPBackend backend : order) {
    const bool usable = backend == SDPBackend::cudnn_attention   ? can_use_cudnn(params)
                        : backend == SDPBackend::flash_attention ? can_use_flash(params)
                        : backend == SDPBackend::efficient_attention
                            ? can_use_efficient(params)
                            : backend == SDPBackend::math && device_profile().math_attention &&
                                  at::globalContext().userEnabledMathSDP();
    if (usable) return backend;
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

SDPBackend choose_on_xpu(const sdp::sdp_params& params) {
  constexpr int64_t kMaxHead = 576;
  const bool needs_gradients = at::GradMode::is_enabled() && sdp::input_requires_grad(params);
  const bool fits =
      has_dtype(params, {at::kFloat, at::kBFloat16, at::kHalf}) && !needs_gradients &&
      sdp::check_for_dropout(params, false) && sdp::check_tensor_shapes(params, false) &&
      sdp::check_batch_size_and_num_heads_dense<true>(params, false) && sdp::check_attn_mask_shape(params, false) &&
      sdp::check_nonzero_sequence_lengths_dense(params, false) &&
      sdp::check_last_dim_stride_equals_1_dense<false>(params, false) && params.query.size(-1) == params.key.size(-1) &&
      std::max(params.query.size(-1), params.value.size(-1)) <= kMaxHead;
  if (fits && at::globalContext().userEnabledOverrideableSDP()) return SDPBackend::overrideable;
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return SDPBackend::math;
}

// Selects the kernel for CUDA, XPU and MPS from the operands and the profile. Throws eager's error if there is none.
SDPBackend choose_attention_kernel(c10::DeviceType device, const sdp::sdp_params& params) {
  if (device == c10::DeviceType::XPU) return choose_on_xpu(params);
  return device == c10::DeviceType::MPS ? SDPBackend::math : choose_on_cuda(params);
}

// The random state of dropout (seed and offset) is placed on the GPU. Eager keeps it on the CPU unless a CUDA graph is
// being captured: 8 to 16 bytes.

// Sizes in results are SymInt in C++ too. The results are output, logsumexp, cumulative lengths of q and k (nested
// tensors only), longest q and k, seed, offset, debug mask.
using FusedResults = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                         double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  if (attention_adds_batch(query, key, value)) {
    return fused_sdp_choice(query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), attention_mask_with_batch(mask),
                            dropout, is_causal, scale, enable_gqa);
  }
  const bool has_mask = given(mask);
  const c10::DeviceType device = simulated_device().type();
  if (device == c10::DeviceType::CUDA || device == c10::DeviceType::XPU || device == c10::DeviceType::MPS) {
    return static_cast<int64_t>(choose_attention_kernel(
        device, {query, key, value, has_mask ? mask : std::nullopt, dropout, is_causal, enable_gqa}));
  }
  if (has_mask && mask->requires_grad()) return static_cast<int64_t>(SDPBackend::math);
  return at::native::_fused_sdp_choice_cpp(stand_in(query), stand_in(key), stand_in(value),
                                           has_mask ? OptionalTensor(stand_in(*mask)) : std::nullopt, dropout,
                                           is_causal, scale, enable_gqa);
}

// The checks and messages of validate_sdpa_input (native/transformers/attention.cpp).
void check_operands(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask) {
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

// Converts a boolean mask, where True keeps, to 0 and -inf.
OptionalTensor additive_mask(const OptionalTensor& mask, ScalarType dtype) {
  if (!given(mask)) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask;
  return at::where(*mask, 0.0,
                   at::scalar_tensor(-std::numeric_limits<double>::infinity(),
                                     at::TensorOptions().dtype(dtype).device(mask->device())));
}

// The flash kernel requires a head dimension that is a multiple of 8.
Tensor padded_head(const Tensor& tensor) {
  const int64_t excess = tensor.size(-1) % 8;
  return excess == 0 ? tensor : at::pad(tensor, {0, 8 - excess});
}

// The efficient kernel loads the bias in vectors of 8: rows that do not start at a multiple of 8 are copied to padded
// ones. Then the bias is broadcast to the scores.
Tensor aligned_bias(Tensor bias, const Tensor& query, const Tensor& key) {
  constexpr int64_t kAlignment = 8;
  bool aligned = bias.stride(-1) == 1;
  for (int64_t d = 0; d + 1 < bias.dim(); ++d) aligned = aligned && bias.stride(d) % kAlignment == 0;
  if (!aligned) {
    const int64_t last = bias.size(-1);
    bias = at::pad(bias, {0, kAlignment - last % kAlignment}).slice(-1, 0, last);
  }
  return bias.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

Tensor sdpa_on_gpu(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& attention_mask,
                   double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  check_operands(query, key, value, attention_mask);
  if (query.numel() == 0 || key.numel() == 0 || value.numel() == 0) {
    DimVector sizes(query.sizes());
    sizes.back() = value.size(-1);
    return at::zeros(sizes, query.options()) + (query.sum() + key.sum() + value.sum()) * 0;
  }
  if (attention_adds_batch(query, key, value)) {
    const Tensor queries = query.unsqueeze(0), keys = key.unsqueeze(0), values = value.unsqueeze(0);
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
      const Tensor output = std::get<0>(
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

Tensor philox_word() { return rules::empty({}, at::kLong); }

// [B, H, S, D] stored as [B, S, H, D]
Tensor empty_bshd(IntArrayRef sizes, ScalarType dtype) {
  return rules::empty({sizes[0], sizes[2], sizes[1], sizes[3]}, dtype).transpose(1, 2);
}

// empty_like of a [B, S, H, D] view, transposed back to [B, H, S, D].
Tensor empty_like_bshd(const Tensor& tensor) { return rules::empty_like(tensor.transpose(1, 2)).transpose(1, 2); }

// ATen/native/transformers/sdp_utils.h: dense, dimensions in the order of q's strides, broadcast ones last.
Tensor empty_with_layout_of(const Tensor& query, IntArrayRef sizes) {
  if (query.sizes() == sizes) return rules::empty_like(query);
  DimVector order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rank = [&](int64_t d) {
    return query.stride(d) == 0 ? std::numeric_limits<int64_t>::max() : query.stride(d);
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
  DimVector strides(sizes.size());
  int64_t stride = 1;
  for (const int64_t d : order) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= sizes[static_cast<size_t>(d)];
  }
  return rules::empty_strided(sizes, strides, query.scalar_type());
}

// oneDNN's kernel on XPU. It returns no log-sum-exp or debug mask, and does not use seed and offset.
FusedResults sdpa_overrideable(const Tensor& query, const Tensor& key, const Tensor& value) {
  const Tensor output = empty_with_layout_of(query, {query.size(0), query.size(1), query.size(2), value.size(3)});
  return {output, {}, {}, {}, query.size(2), key.size(2), philox_word(), philox_word(), {}};
}

// ---- CPU (native/transformers/attention.cpp, native/cpu/FlashAttentionKernel.cpp)

TwoTensors flash_for_cpu(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool is_causal,
                         const OptionalTensor& mask, std::optional<double> scale) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {B, H, T, K}");
  TORCH_CHECK(dropout == 0.0, "scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0");
  TORCH_CHECK(query.size(3) == value.size(3) && key.size(3) == value.size(3),
              "scaled_dot_product_attention_flash_attention: Q/K/V should have the same head size");
  TORCH_CHECK(!given(mask) || mask->scalar_type() == at::kFloat || mask->scalar_type() == query.scalar_type(),
              "scaled_dot_product_attention_flash_attention: Attention mask is the same data type as query");
  TORCH_CHECK(!given(mask) || mask->dim() == 2 || mask->dim() == 4,
              "scaled_dot_product_attention_flash_attention: Attention mask dim in {2, 4}");
  const ScalarType accumulate = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {rules::empty_like(query),
          rules::empty({query.size(0), query.size(2), query.size(1)}, accumulate).transpose(1, 2)};
}

ThreeTensors flash_for_cpu_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& out, const Tensor& logsumexp, double dropout, bool is_causal,
                                    const OptionalTensor& mask, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_bshd(query.sizes(), query.scalar_type()), empty_bshd(key.sizes(), key.scalar_type()),
          empty_bshd(value.sizes(), value.scalar_type())};
}

// ---- CUDA. Sizes and dtypes match torch/_meta_registrations.py of 2.13.0.

// The kernels are compiled for these dtypes only. float8 operands are computed in another one (sdpa_flash_scaled).
void check_dtype(const Tensor& query, std::initializer_list<ScalarType> compiled, const char* message) {
  const bool found = std::find(compiled.begin(), compiled.end(), query.scalar_type()) != compiled.end();
  TORCH_CHECK(!on_cuda() || found, message, ", but got ", query.scalar_type());
}
void check_flash(const Tensor& query) {
  check_dtype(query, {at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn},
              "FlashAttention only support fp16 and bf16 data type");
}
void check_efficient(const Tensor& query) {
  check_dtype(query, {at::kHalf, at::kBFloat16, at::kFloat}, "Only fp32, half & bf16 supported!");
}
void check_cudnn(const Tensor& query) {
  check_dtype(query, {at::kHalf, at::kBFloat16}, "cuDNN attention supports float16 and bfloat16");
}

// Two 64-bit words of Philox state, and a result that is no longer used.
Tensor flash_random_state() { return rules::empty({2}, at::kUInt64); }
Tensor flash_unused() { return rules::empty({}, at::kUInt64); }

Tensor flash_debug_mask(const Tensor& query, int64_t heads, int64_t longest_query, int64_t longest_key, bool wanted) {
  if (!wanted) return rules::empty({0}, query);
  const int64_t block = query.size(-1) > 64 ? 128 : 256;
  const int64_t columns = longest_key <= 128 ? 128 : longest_key <= 256 ? 256 : (longest_query + block - 1) / block;
  return rules::empty({query.size(0), heads, longest_query, columns}, query);
}

FusedResults sdpa_flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool is_causal,
                        bool return_debug_mask, std::optional<double> scale) {
  check_flash(query);
  const int64_t heads = query.size(1);
  const int64_t longest_query = query.size(2);
  const int64_t longest_key = key.size(2);
  return {empty_like_bshd(query),
          rules::empty({query.size(0), heads, longest_query}, at::kFloat),
          Tensor(),
          Tensor(),
          longest_query,
          longest_key,
          flash_random_state(),
          flash_unused(),
          flash_debug_mask(query, heads, longest_query, longest_key, return_debug_mask)};
}

ThreeTensors sdpa_flash_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& out, const Tensor& logsumexp, const Tensor& cum_seq_q,
                                 const Tensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout, bool is_causal,
                                 const Tensor& philox_seed, const Tensor& philox_offset, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_like_bshd(query), empty_like_bshd(key), empty_like_bshd(value)};
}

// Rows of logsumexp are padded so that the backward kernel can load them in blocks (kAlignLSE).
int64_t efficient_logsumexp_length(int64_t longest_query, bool wanted) {
  constexpr int64_t kAlignment = 32;
  return wanted ? rounded_up(longest_query, kAlignment) : 0;
}

// Rows padded to a multiple of 16 elements, sliced to the bias's length.
Tensor efficient_bias_gradient(const Tensor& bias) {
  constexpr int64_t kAlignment = 16;
  DimVector sizes(bias.sizes());
  const int64_t last = sizes.back();
  sizes.back() = rounded_up(last, kAlignment);
  return rules::empty(sizes, bias).slice(-1, 0, last);
}

FourTensors sdpa_efficient(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                           bool compute_logsumexp, double dropout, bool is_causal, std::optional<double> scale) {
  check_efficient(query);
  const int64_t length = efficient_logsumexp_length(query.size(2), compute_logsumexp);
  return {empty_bshd({query.size(0), query.size(1), query.size(2), value.size(3)}, query.scalar_type()),
          rules::empty({query.size(0), query.size(1), length}, at::kFloat), philox_word(), philox_word()};
}

FourTensors sdpa_efficient_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                    const Tensor& bias, const Tensor& out, const Tensor& logsumexp,
                                    const Tensor& philox_seed, const Tensor& philox_offset, double dropout,
                                    std::array<bool, 4> mask, bool is_causal, std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {empty_bshd(query.sizes(), query.scalar_type()), empty_bshd(key.sizes(), key.scalar_type()),
          empty_bshd(value.sizes(), value.scalar_type()),
          bias.defined() && mask[3] ? efficient_bias_gradient(bias) : Tensor()};
}

// native/cudnn/MHA.cpp; without backward there is no logsumexp.
FusedResults sdpa_cudnn(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                        bool compute_logsumexp, double dropout, bool is_causal, bool return_debug_mask,
                        std::optional<double> scale) {
  check_cudnn(query);
  const int64_t sizes[] = {query.size(0), query.size(1), query.size(2), value.size(3)};
  Tensor logsumexp;
  if (compute_logsumexp) logsumexp = rules::empty({sizes[0], sizes[1], sizes[2], 1}, at::kFloat);
  return {empty_with_layout_of(query, sizes),
          logsumexp,
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          philox_word(),
          philox_word(),
          Tensor()};
}

ThreeTensors sdpa_cudnn_backward(const Tensor& grad_out, const Tensor& query, const Tensor& key, const Tensor& value,
                                 const Tensor& out, const Tensor& logsumexp, const Tensor& philox_seed,
                                 const Tensor& philox_offset, const Tensor& bias, const Tensor& cum_seq_q,
                                 const Tensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout, bool is_causal,
                                 std::optional<double> scale) {
  if (!grad_out.defined()) return {};
  return {rules::empty_like(query), rules::empty_like(key), rules::empty_like(value)};
}

// ---- The underlying kernels: [B, S, H, D], or [sum of lengths, H, D] with cumulative lengths.

FiveTensors flash_forward(const Tensor& query, const Tensor& key, const OptionalTensor& cum_seq_q,
                          const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k, bool return_debug_mask) {
  check_flash(query);
  const int64_t heads = query.size(-2);
  const bool packed = given(cum_seq_q);
  return {rules::empty_like(query),
          packed ? rules::empty({heads, query.size(0)}, at::kFloat)
                 : rules::empty({query.size(0), heads, query.size(1)}, at::kFloat),
          flash_random_state(), flash_unused(),
          flash_debug_mask(query, heads, packed ? max_q : query.size(1), given(cum_seq_k) ? max_k : key.size(1),
                           return_debug_mask)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cu_seqlens_q,
    std::optional<int64_t> max_q, std::optional<int64_t> max_k, bool compute_logsumexp) {
  check_efficient(query);
  const bool packed = given(cu_seqlens_q);
  TORCH_CHECK(!packed || max_q.has_value(), "_efficient_attention_forward: cu_seqlens_q requires max_seqlen_q");
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

FourTensors efficient_backward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& bias,
                               bool bias_requires_grad, bool shared_storage) {
  Tensor bias_gradient;
  if (given(bias) && bias_requires_grad) bias_gradient = efficient_bias_gradient(*bias);
  if (shared_storage) {
    TORCH_CHECK(query.size(1) == key.size(1),
                "`shared_storage_dqdkdv` is only supported when Q/K/V share the same sequence length");
    TORCH_CHECK(query.size(3) == key.size(3), "embedding dim must match for `shared_storage_dqdkdv");
    const Tensor chunk = rules::empty({query.size(0), query.size(1), 3, query.size(2), query.size(3)}, query);
    return {chunk.select(2, 0), chunk.select(2, 1), chunk.select(2, 2), bias_gradient};
  }
  return {rules::empty(query.sizes(), query), rules::empty(key.sizes(), key), rules::empty(value.sizes(), value),
          bias_gradient};
}

// ---- The inference fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention

TwoTensors native_multi_head_attention(const Tensor& query, int64_t embedding, int64_t heads,
                                       const Tensor& projection_weight, bool need_weights, bool average_weights) {
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(query.size(2) == embedding, "passed-in embed_dim ", embedding, " didn't match last dim of query ",
              query.size(2));
  TORCH_CHECK(embedding % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  const int64_t batch = query.size(0);
  const int64_t length = query.size(1);
  Tensor weights;
  if (need_weights) {
    weights = average_weights ? rules::empty({batch, length, length}, query)
                              : rules::empty({batch, heads, length, length}, query);
  }
  return {rules::empty({batch, length, projection_weight.size(0)}, query), weights};
}

// ---- Kernels that only programs call directly: other forms of the above, and parts of fused encoder layers

// For float8 queries, keys and values the result is bfloat16.
Tensor computed_in(const Tensor& query) {
  return query.scalar_type() == c10::kFloat8_e4m3fn ? rules::empty_like(query, c10::kBFloat16) : query;
}

FusedResults sdpa_flash_scaled(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool causal,
                               bool debug_mask, std::optional<double> scale) {
  return at::_scaled_dot_product_flash_attention(computed_in(query), computed_in(key), computed_in(value), dropout,
                                                 causal, debug_mask, scale);
}

FiveTensors flash_scaled(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cum_seq_q,
                         const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
                         bool debug_mask) {
  return at::_flash_attention_forward(computed_in(query), computed_in(key), computed_in(value), cum_seq_q, cum_seq_k,
                                      max_q, max_k, dropout, causal, debug_mask);
}

Tensor flash_into(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& cum_seq_q,
                  const OptionalTensor& cum_seq_k, int64_t max_q, int64_t max_k, double dropout, bool causal,
                  bool debug_mask) {
  return std::get<1>(
      at::_flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout, causal, debug_mask));
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

// ---- FlexAttention as the kernel that torch.compile makes for CUDA (python/shadowgraph/_flex_attention.py). Score and
// mask functions are not among its arguments, so it runs on fake tensors only. `scores` is the number of scores it
// computes, of all samples and query heads, in blocks that its mask does not skip; negative: all of them, because the
// mask depends on unknown data. `buffers` are tensors that the mask and both functions read.

// Returns a dense tensor with the query's order of dimensions.
Tensor flex_output(const Tensor& query, const Tensor& value) {
  std::vector<int64_t> order = {0, 1, 2, 3}, sizes(4), back(4);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return query.stride(a) > query.stride(b); });
  for (size_t i = 0; i < 4; ++i) {
    sizes[i] = order[i] == 3 ? value.size(3) : query.size(order[i]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return rules::empty(sizes, query).permute(back);
}

ThreeTensors flex_attention(const Tensor& query, const Tensor& key, const Tensor& value) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
              "flex_attention expects query, key and value of 4 dimensions, but got ", query.dim(), ", ", key.dim(),
              " and ", value.dim());
  return {flex_output(query, value), rules::empty({query.size(0), query.size(1), query.size(2)}, at::kFloat),
          rules::empty({0}, at::kFloat)};
}

TORCH_LIBRARY_FRAGMENT(shadowgraph, library) {
  library.def(
      "flex_attention(Tensor query, Tensor key, Tensor value, int scores, float scale, Tensor[] buffers) -> "
      "(Tensor output, Tensor logsumexp, Tensor max_scores)");
  library.def(
      "flex_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor output, "
      "Tensor logsumexp, int scores, float scale, Tensor[] buffers) -> (Tensor, Tensor, Tensor)");
}

// Splits a projection [B, T, 3 D] into heads: three views of one tensor.
ThreeTensors heads_of_projection(const Tensor& qkv, const Tensor& bias, int64_t heads) {
  TORCH_CHECK(qkv.dim() == 3 && bias.dim() == 1 && qkv.size(2) == bias.size(0) && qkv.size(2) % (3 * heads) == 0,
              "expected [B, T, 3 D] and a bias of size 3 D for ", heads, " heads, but got ", qkv.sizes(), " and ",
              bias.sizes());
  const Tensor all = rules::empty({3, qkv.size(0), heads, qkv.size(1), qkv.size(2) / (3 * heads)}, qkv);
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
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
  registry.add_partial({"aten::_scaled_dot_product_fused_attention_overrideable"}, &sdpa_overrideable);
  registry.add_partial({"aten::_flash_attention_forward"}, &flash_forward,
                       {"query", "key", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "return_debug_mask"});
  registry.add_partial({"aten::_efficient_attention_forward"}, &efficient_forward,
                       {"query", "key", "value", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "compute_log_sumexp"});
  registry.add_partial({"aten::_efficient_attention_backward"}, &efficient_backward,
                       {"query", "key", "value", "bias", "bias_requires_grad", "shared_storage_dqdkdv"});
  registry.add_partial({"aten::_native_multi_head_attention"}, &native_multi_head_attention,
                       {"query", "embed_dim", "num_head", "proj_weight", "need_weights", "average_attn_weights"});
  registry.add_partial({"aten::_scaled_dot_product_flash_attention.quantized"}, &sdpa_flash_scaled,
                       {"query", "key", "value", "dropout_p", "is_causal", "return_debug_mask", "scale"});
  registry.add_partial({"aten::_flash_attention_forward.quantized"}, &flash_scaled);
  registry.add_partial({"aten::_flash_attention_forward_no_dropout_inplace"}, &flash_into,
                       {"query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal",
                        "return_debug_mask"});
  registry.add_partial({"aten::_cudnn_attention_forward"}, &cudnn_forward);
  registry.add_partial({"shadowgraph::flex_attention"}, &flex_attention);
  registry.add("aten::_transform_bias_rescale_qkv", &heads_of_projection);
  add_like(
      registry,
      {"shadowgraph::flex_attention_backward", "aten::_flash_attention_backward", "aten::_cudnn_attention_backward"},
      {1, 2, 3});
  add_like(registry, {"aten::_transformer_encoder_layer_fwd"}, {0}, &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
