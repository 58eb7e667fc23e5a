// Bitwise comparison of tensors: shape, dtype, contents, and optionally strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>

namespace shadowgraph {

inline bool same_contents(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return same_contents(a, b) && (!a.defined() || a.strides() == b.strides());
}

}  // namespace shadowgraph
