// libtorch's selection of an attention kernel on GPUs, where versions differ.
//
// Replaces: one choice for all versions (core/fake/rules/attention.cpp).
// Since:    see each, from native/transformers/cuda/sdp_utils.cpp and the functions in libtorch_cuda.so of the wheels.
// Check:    AttentionRules.CudaPicksEagersKernel.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <optional>

#include "core/libtorch/kernels.h"

namespace shadowgraph {

// 2.14: 3-D operands get a batch dimension of one before the selection, and lose it at the end.
constexpr bool kAttentionAddsBatch = kLibtorchMinor >= 214;
inline bool attention_adds_batch(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return kAttentionAddsBatch && query.dim() == 3 && key.dim() == 3 && value.dim() == 3;
}
inline std::optional<at::Tensor> attention_mask_with_batch(std::optional<at::Tensor> mask) {
  while (mask && mask->defined() && mask->dim() < 4) mask = mask->unsqueeze(0);
  return mask;
}

// 2.14: the efficient kernel supports grouped queries, and requires operands that start at aligned offsets.
constexpr bool kEfficientAttentionTakesGroups = kLibtorchMinor >= 214;
constexpr bool kEfficientAttentionWantsAlignment = kLibtorchMinor >= 214;

// 2.14: cuDNN's frontend has kernels for heads of up to 256, and its grid limits are checked; 2.15 checks flash's.
constexpr bool kCudnnAttentionTakesWideHeads = kLibtorchMinor >= 214;
constexpr bool kCudnnAttentionHasLargestGrid = kLibtorchMinor >= 214;
constexpr bool kFlashAttentionHasLargestGrid = kLibtorchMinor >= 215;

// 2.14: excludes a single query with these versions of cuDNN on compute capabilities 10 and 11.
constexpr bool cudnn_attention_refuses_one_query(long cudnn, int major) {
  return kLibtorchMinor >= 214 && (major == 10 || major == 11) && 91900 <= cudnn && cudnn <= 92500 &&
         !(92401 <= cudnn && cudnn < 92500);
}

// 2.14: a single head of keys and values serves all queries, grouped or not.
template <bool groups, bool same_heads, class Parameters>
bool attention_heads_fit(const Parameters& params) {
  if constexpr (requires { sdp::check_batch_size_and_num_heads_dense<groups, same_heads, true>(params, false); }) {
    return sdp::check_batch_size_and_num_heads_dense<groups, same_heads, true>(params, false);
  } else {
    return sdp::check_batch_size_and_num_heads_dense<groups, same_heads>(params, false);
  }
}

}  // namespace shadowgraph
