// Gaps between elements are zeroed, so equal tensors have equal bytes. An expanded tensor is as small as its storage.
#include "ir/text/tensor_bytes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>

namespace shadowgraph {
namespace {

// Strides of huge sizes overflow. Wrapping is well defined, and both functions below wrap in the same way.
int64_t wrapping_product(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// Copies the elements according to their strides and skips gaps. Dimensions of stride 0 are copied once.
void copy_elements(const TensorBytes& like, const uint8_t* from, uint8_t* to, size_t item) {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (size_t d = 0; d < like.sizes.size(); ++d) {
    if (like.sizes[d] == 0) return;
    // All indices of stride 0 are the same bytes, which would be copied repeatedly.
    if (like.strides[d] == 0 || like.sizes[d] == 1) continue;
    sizes.push_back(like.sizes[d]);
    strides.push_back(like.strides[d]);
  }
  std::vector<int64_t> index(sizes.size(), 0);
  int64_t at = 0;
  while (true) {
    std::memcpy(to + static_cast<size_t>(at) * item, from + static_cast<size_t>(at) * item, item);
    // Counts like an odometer, the last dimension fastest, and updates `at` with one addition.
    size_t d = sizes.size();
    while (d > 0) {
      --d;
      at += strides[d];
      if (++index[d] < sizes[d]) break;
      at -= strides[d] * sizes[d];
      index[d] = 0;
      if (d == 0) return;
    }
    if (sizes.empty()) return;
  }
}

}  // namespace

std::optional<int64_t> extent_of(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    // Sizes may come from a file, so they are not trusted.
    if (sizes[d] < 0 || strides[d] < 0) return std::nullopt;
    if (sizes[d] == 0) {
      empty = true;
      continue;
    }
    int64_t reach = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (__builtin_add_overflow(last, 1, &last)) return std::nullopt;
  return last;
}

void contiguous_strides(std::span<const int64_t> sizes, std::vector<int64_t>& strides) {
  strides.resize(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride = wrapping_product(stride, std::max<int64_t>(sizes[d], 1));
  }
}

bool has_contiguous_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != stride) return false;
    stride = wrapping_product(stride, std::max<int64_t>(sizes[d], 1));
  }
  return true;
}

std::optional<TensorBytes> tensor_bytes(const at::Tensor& given) {
  if (!given.defined() || given.layout() != c10::kStrided || given.is_quantized()) return std::nullopt;
  at::Tensor tensor = given;
  if (!tensor.device().is_cpu()) {
    if (!tensor.device().is_cuda() || !tensor.has_storage() || tensor.storage().data() == nullptr) return std::nullopt;
    tensor = tensor.to(c10::kCPU);
  }
  // The bytes do not include the flags, so the values are computed first.
  if (tensor.is_conj() || tensor.is_neg()) tensor = tensor.resolve_conj().resolve_neg();
  TensorBytes result{tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), {}};
  const auto extent = extent_of(result.sizes, result.strides);
  if (!extent || !tensor.has_storage() || (*extent > 0 && tensor.storage().data() == nullptr)) return std::nullopt;
  if (*extent == 0) return result;
  const size_t item = c10::elementSize(result.dtype);
  result.bytes.resize(static_cast<size_t>(*extent) * item);
  const auto* data = static_cast<const uint8_t*>(tensor.const_data_ptr());
  if (has_contiguous_strides(result.sizes, result.strides)) {
    std::memcpy(result.bytes.data(), data, result.bytes.size());
  } else {
    copy_elements(result, data, result.bytes.data(), item);
  }
  return result;
}

std::optional<at::Tensor> tensor_of(const TensorBytes& bytes) {
  const auto dtype = bytes.dtype;
  if (dtype == c10::ScalarType::Undefined || c10::isQIntType(dtype) || bytes.sizes.size() != bytes.strides.size()) {
    return std::nullopt;
  }
  const auto extent = extent_of(bytes.sizes, bytes.strides);
  int64_t size = 0;
  if (!extent || __builtin_mul_overflow(*extent, static_cast<int64_t>(c10::elementSize(dtype)), &size) ||
      static_cast<size_t>(size) != bytes.bytes.size()) {
    return std::nullopt;
  }
  // numel must fit an int64 even if stride 0 keeps the extent small.
  int64_t numel = 1;
  for (const int64_t s : bytes.sizes) {
    if (__builtin_mul_overflow(numel, s, &numel)) return std::nullopt;
  }
  at::Tensor tensor = at::detail::empty_strided_cpu(bytes.sizes, bytes.strides, dtype);
  if (size > 0) std::memcpy(tensor.mutable_data_ptr(), bytes.bytes.data(), bytes.bytes.size());
  return tensor;
}

}  // namespace shadowgraph
