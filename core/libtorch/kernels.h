// What PyTorch does in some versions alone, where no header tells.
//
// Replaces: one answer for all versions.
// Since:    stands at each.
// Check:    tests hold fakes against eager: NormalizationRules.GroupAndInstanceNormAgreeWithEager, PlainOperands.*; FLOPs
// against FlopCounterMode in tests/package/test_hugging_face.py.
#pragma once

#include <c10/core/ScalarType.h>
#include <torch/headeronly/version.h>

namespace shadowgraph {

constexpr int kLibtorchMinor = TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR;

// 2.14: native_group_norm makes its input contiguous; before, group_norm did, and the kernel refused others.
constexpr bool kGroupNormTakesAnyLayout = kLibtorchMinor >= 214;

// 2.15: torch.utils.flop_counter counts the CPU's flash attention.
constexpr bool kFlopsOfCpuFlashCounted = kLibtorchMinor >= 215;

// 2.14: its formula of _flash_attention_forward takes dense operands as (batch, tokens, heads, depth), as they are.
constexpr bool kFlopsOfFlashReadHeadsLast = kLibtorchMinor >= 214;

// 2.14 has the dtype, number 46, and no kernels on the CPU that compute with it. bfloat16 and a complex number promote to it.
constexpr bool is_bcomplex32(c10::ScalarType dtype) {
  return static_cast<int>(dtype) == 46 && dtype != c10::ScalarType::Undefined;
}

}  // namespace shadowgraph
