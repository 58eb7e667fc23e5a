// Fourier transforms. The libraries transform innermost dimensions, so the strides of a result follow the plan.
#include <algorithm>

#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Tensor;
using c10::IntArrayRef;

c10::DimVector by_descending_stride(const Tensor& x, IntArrayRef dims) {
  c10::DimVector sorted(dims);
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return sorted;
}

// A result whose memory order is: dimensions of the batch as in `x`, then the transformed ones as given. The CPU plans
// nothing for no elements.
Tensor transformed(const Tensor& x, IntArrayRef sizes, IntArrayRef dims, c10::ScalarType dtype) {
  if (x.numel() == 0 && !on_cuda()) return rules::empty(sizes, dtype);
  c10::DimVector order;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order = by_descending_stride(x, order);
  order.append(dims.begin(), dims.end());
  c10::DimVector strides(sizes.size());
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<size_t>(*d)] = stride;
    stride *= std::max<int64_t>(sizes[static_cast<size_t>(*d)], 1);
  }
  return rules::empty_strided(sizes, strides, dtype);
}

constexpr size_t kCufftDimensions = 3;

bool one_cufft_plan(IntArrayRef dims) {
  return dims.size() <= kCufftDimensions && !(dims.size() >= 2 && dims[0] == 0 && dims[1] == 1);
}

// Up to three dimensions a time, innermost first.
Tensor cufft_stages(Tensor x, IntArrayRef dims) {
  c10::DimVector left(dims);
  while (!left.empty()) {
    left = by_descending_stride(x, left);
    const size_t count = std::min(kCufftDimensions, left.size());
    const c10::DimVector stage(left.end() - static_cast<std::ptrdiff_t>(count), left.end());
    x = transformed(x, x.sizes(), stage, x.scalar_type());
    left.resize(left.size() - count);
  }
  return x;
}

c10::DimVector with_size(const Tensor& x, int64_t dim, int64_t size) {
  c10::DimVector sizes(x.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
}

Tensor fft_c2c(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, bool /*forward*/) {
  TORCH_CHECK(x.is_complex(), "_fft_c2c expects a complex tensor, but got ", x.scalar_type());
  if (dims.empty()) return rules::empty_like(x);
  return on_cuda() ? cufft_stages(x, dims) : transformed(x, x.sizes(), by_descending_stride(x, dims), x.scalar_type());
}

Tensor fft_r2c(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, bool onesided) {
  TORCH_CHECK(x.is_floating_point(), "_fft_r2c expects a floating-point tensor, but got ", x.scalar_type());
  const auto dtype = c10::toComplexType(x.scalar_type());
  const int64_t last = dims.back();
  const IntArrayRef others = dims.slice(0, dims.size() - 1);
  const auto half = with_size(x, last, x.size(last) / 2 + 1);
  if (!on_cuda()) {
    auto order = by_descending_stride(x, others);
    order.push_back(last);
    return transformed(x, onesided ? IntArrayRef(half) : x.sizes(), order, dtype);
  }
  Tensor result = one_cufft_plan(dims) ? transformed(x, half, dims, dtype)
                                       : cufft_stages(transformed(x, half, last, dtype), others);
  // The other half is filled in place of a contiguous tensor.
  return onesided ? result : rules::empty(x.sizes(), dtype);
}

Tensor fft_c2r(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, int64_t last_size) {
  TORCH_CHECK(x.is_complex(), "_fft_c2r expects a complex tensor, but got ", x.scalar_type());
  const auto dtype = c10::toRealValueType(x.scalar_type());
  const int64_t last = dims.back();
  const IntArrayRef others = dims.slice(0, dims.size() - 1);
  const auto sizes = with_size(x, last, last_size);
  if (on_cuda() && one_cufft_plan(dims)) {
    return transformed(rules::empty(x.sizes(), x), sizes, dims, dtype);
  }
  if (!others.empty()) return transformed(fft_c2c(x, others, 0, false), sizes, last, dtype);
  return transformed(on_cuda() ? rules::empty(x.sizes(), x) : x, sizes, last, dtype);
}

}  // namespace

void register_fourier(RuleRegistry& registry) {
  registry.add("aten::_fft_c2c", &fft_c2c);
  registry.add("aten::_fft_r2c", &fft_r2c);
  registry.add("aten::_fft_c2r", &fft_c2r);
}

}  // namespace shadowgraph::rules
