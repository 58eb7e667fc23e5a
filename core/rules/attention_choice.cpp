// The choice follows sdp_utils.cpp (native/transformers/cuda), for each version as core/libtorch/attention_checks.h has it. The
// checks that libtorch keeps in a header are called, those of the .cpp are written out here. cuDNN comes first on compute capability 9 and 10 with cuDNN newer
// than 9.15, otherwise flash, efficient, math, cuDNN.
//
// XPU and MPS are asked through a function that a CPU build of libtorch lacks, so the same composite serves them:
//   XPU  oneDNN's fused kernel where it fits, which is in inference, otherwise the mathematical definition
//        (native/mkldnn/xpu/Attention.cpp). Its flash kernel, for some devices and 16-bit dtypes, is not pretended.
//   MPS  the mathematical definition, as in training; in inference MPS has one operator for it.
#include "core/rules/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/env.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/libtorch/attention_checks.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::ScalarType;
using at::SDPBackend;

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

// Blocks of a grid beside the first dimension's.
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
      sdp::input_requires_grad(params)) {
    if (head > 192 && (head <= 224 || params.dropout > 0.0)) return false;
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

// Where operands begin, in elements from memory that is aligned.
bool begin_aligned(const sdp::sdp_params& params, int64_t alignment) {
  if (!kEfficientAttentionWantsAlignment || device_profile().sm_major < 8) return true;
  const auto begins = [&](const at::Tensor& tensor) {
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

// The heads of queries and values that cuDNN has kernels for, also backward ones.
bool cudnn_takes_heads(const sdp::sdp_params& params, int64_t head, int64_t value_head) {
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
  if (!cudnn_takes_heads(params, params.query.size(3), params.value.size(3))) return false;
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
  // Eager puts cuDNN in front once, unless the user has set an order.
  if (order.front() == SDPBackend::flash_attention && prefers_cudnn()) {
    order.insert(order.begin(), SDPBackend::cudnn_attention);
  }
  for (const SDPBackend backend : order) {
    switch (backend) {
      case SDPBackend::cudnn_attention:
        if (can_use_cudnn(params)) return backend;
        break;
      case SDPBackend::flash_attention:
        if (can_use_flash(params)) return backend;
        break;
      case SDPBackend::efficient_attention:
        if (can_use_efficient(params)) return backend;
        break;
      case SDPBackend::math:
        if (device_profile().math_attention && at::globalContext().userEnabledMathSDP()) return backend;
        break;
      default:
        break;
    }
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

SDPBackend choose_on_xpu(const sdp::sdp_params& params) {
  constexpr int64_t kLongestHead = 576;
  const bool wants_gradients = at::GradMode::is_enabled() && sdp::input_requires_grad(params);
  const bool fits =
      has_dtype(params, {at::kFloat, at::kBFloat16, at::kHalf}) && !wants_gradients &&
      sdp::check_for_dropout(params, false) && sdp::check_tensor_shapes(params, false) &&
      sdp::check_batch_size_and_num_heads_dense<true>(params, false) && sdp::check_attn_mask_shape(params, false) &&
      sdp::check_nonzero_sequence_lengths_dense(params, false) &&
      sdp::check_last_dim_stride_equals_1_dense<false>(params, false) && params.query.size(-1) == params.key.size(-1) &&
      std::max(params.query.size(-1), params.value.size(-1)) <= kLongestHead;
  if (fits && at::globalContext().userEnabledOverrideableSDP()) return SDPBackend::overrideable;
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return SDPBackend::math;
}

}  // namespace

at::SDPBackend choose_attention_kernel(c10::DeviceType device, const sdp::sdp_params& params) {
  switch (device) {
    case c10::DeviceType::XPU:
      return choose_on_xpu(params);
    case c10::DeviceType::MPS:
      return SDPBackend::math;
    default:
      return choose_on_cuda(params);
  }
}

}  // namespace shadowgraph::rules
