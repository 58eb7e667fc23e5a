// Distances between two results.
#pragma once

#include <ATen/core/Tensor.h>

namespace shadowgraph::kernel_tests {

// Returns the largest distance in ulps between two tensors of one dtype. Infinite for NaN against a number, for
// different infinities, and for zeros of different sign.
double ulps_between(const at::Tensor& a, const at::Tensor& b);

// Returns the largest difference, in epsilons of the dtype at the largest finite magnitude of `a`, or at `least` if
// that is larger. Infinite if one has a NaN or an infinity and the other does not have the same.
double epsilons_between(const at::Tensor& a, const at::Tensor& b, double least = 0);

}  // namespace shadowgraph::kernel_tests
