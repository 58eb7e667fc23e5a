// How far apart two results are.
#pragma once

#include <ATen/core/Tensor.h>

namespace shadowgraph::kernel_tests {

// Returns the most units in the last place between two tensors of one dtype. Infinite for a NaN against a number, for
// other infinities and for a zero of another sign against a zero.
double ulps_between(const at::Tensor& a, const at::Tensor& b);

// Returns the largest difference, in epsilons of the dtype at the largest finite number of `a`, or at `least` if that
// is more. Infinite where one has a NaN or an infinity and the other does not have the same.
double epsilons_between(const at::Tensor& a, const at::Tensor& b, double least = 0);

}  // namespace shadowgraph::kernel_tests
