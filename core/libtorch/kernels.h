// Behavior of PyTorch that differs between versions and is not visible in headers.
//
// Replaces: one behavior for all versions.
// Since:    see each.
// Check:    tests compare fakes with eager: NormalizationRules.GroupAndInstanceNormAgreeWithEager, PlainOperands.*;
//           tests/package/test_hugging_face.py compares FLOPs with FlopCounterMode.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>

namespace shadowgraph {

constexpr int kLibtorchMinor = TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR;

// 2.14: native_group_norm makes its input contiguous; before, group_norm did, and the kernel rejected other inputs.
constexpr bool kGroupNormAcceptsAnyLayout = kLibtorchMinor >= 214;

// 2.15: torch.utils.flop_counter counts the CPU's flash attention.
constexpr bool kFlopsOfCpuFlashCounted = kLibtorchMinor >= 215;

// 2.14: its formula for _flash_attention_forward reads dense operands as (batch, tokens, heads, depth).
constexpr bool kFlopsOfFlashReadHeadsLast = kLibtorchMinor >= 214;

// 2.14 has the dtype, number 46, without CPU kernels that compute in it. bfloat16 and a complex number promote to it.
constexpr bool is_bcomplex32(c10::ScalarType dtype) {
  return static_cast<int>(dtype) == 46 && dtype != c10::ScalarType::Undefined;
}

}  // namespace shadowgraph
