#include "tests/kernels/differences.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shadowgraph::kernel_tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int digits_of(at::ScalarType dtype) {
  return dtype == at::kFloat ? 24 : dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : 53;
}

}  // namespace

double ulps_between(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble).contiguous();
  const at::Tensor y = b.to(at::kDouble).contiguous();
  const bool floating = a.is_floating_point();
  const int digits = digits_of(a.scalar_type());
  int least = -1074;
  if (a.scalar_type() == at::kFloat) least = -149;
  if (a.scalar_type() == at::kHalf) least = -24;
  if (a.scalar_type() == at::kBFloat16) least = -133;
  double worst = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double p = x.data_ptr<double>()[i];
    const double q = y.data_ptr<double>()[i];
    if (std::isnan(p) && std::isnan(q)) continue;
    if (p == q && (!floating || std::signbit(p) == std::signbit(q))) continue;
    if (std::isnan(p) || std::isnan(q) || std::isinf(p) || std::isinf(q) || !floating || p == q) {
      return kInfinity;
    }
    int exponent = 0;
    std::frexp(std::max(std::abs(p), std::abs(q)), &exponent);
    worst = std::max(worst, std::abs(p - q) / std::ldexp(1.0, std::max(exponent - digits, least)));
  }
  return worst;
}

double epsilons_between(const at::Tensor& a, const at::Tensor& b, double least) {
  const at::Tensor x = a.to(at::kDouble).contiguous();
  const at::Tensor y = b.to(at::kDouble).contiguous();
  double largest = least;
  double difference = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double p = x.data_ptr<double>()[i];
    const double q = y.data_ptr<double>()[i];
    if ((std::isnan(p) && std::isnan(q)) || (std::isinf(p) && p == q)) continue;
    if (!std::isfinite(p) || !std::isfinite(q)) return kInfinity;
    largest = std::max(largest, std::abs(p));
    difference = std::max(difference, std::abs(p - q));
  }
  if (difference == 0) return 0;
  return !a.is_floating_point() || largest == 0 ? kInfinity
                                                : difference / std::ldexp(largest, 1 - digits_of(a.scalar_type()));
}

}  // namespace shadowgraph::kernel_tests
