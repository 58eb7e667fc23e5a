// Creates the tensors used by samples of sharding rules.
#pragma once

#include <ATen/ATen.h>

namespace shadowgraph::samples_of_rules {

using at::Tensor;
using Sizes = at::IntArrayRef;

inline Tensor real(Sizes sizes) { return at::empty(sizes, at::kDouble); }
inline Tensor leaf(Sizes sizes) { return real(sizes).requires_grad_(); }
inline Tensor ints(Sizes sizes) { return at::empty(sizes, at::kLong); }
inline Tensor bools(Sizes sizes) { return at::empty(sizes, at::kBool); }

// Runs backward from a random gradient; the gradient of sum() would be expanded and constant.
inline void back(const Tensor& result) { result.backward(real(result.sizes())); }

}  // namespace shadowgraph::samples_of_rules
