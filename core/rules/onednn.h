// What oneDNN computes with on a CPU, for rules of operators that are its own there.
#pragma once

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

#include "shadowgraph/fake.h"

namespace shadowgraph::rules {

inline bool mkldnn_computes_in(c10::ScalarType dtype, const CpuProfile& cpu) {
  switch (dtype) {
    case c10::kFloat:
      return true;
    case c10::kBFloat16:
      return cpu.mkldnn_bf16;
    case c10::kHalf:
      return cpu.mkldnn_fp16;
    default:
      return false;
  }
}

// Whether libtorch, which asks this machine's processor, would answer for the pretended one.
inline bool mkldnn_is_as_here(c10::ScalarType dtype, const CpuProfile& pretended) {
  return mkldnn_computes_in(dtype, pretended) == mkldnn_computes_in(dtype, CpuProfile::this_machine());
}

}  // namespace shadowgraph::rules
