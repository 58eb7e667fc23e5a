// Bytes of a constant tensor, for text, JSON and comparison. Makes no dispatcher calls for CPU tensors: printing must
// work while a fake mode intercepts at::empty.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace at {
class Tensor;
}

namespace shadowgraph {

struct TensorBytes {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  // The memory from the first element to the last, with gaps between elements zeroed.
  std::vector<uint8_t> bytes;
};

// Empty for a tensor without readable contents: undefined, meta, sparse, quantized, or a wrapper. Tensors on other
// devices are copied to the CPU.
std::optional<TensorBytes> tensor_bytes(const at::Tensor& tensor);

// Builds the CPU tensor. Empty if sizes, strides and bytes are inconsistent.
std::optional<at::Tensor> tensor_of(const TensorBytes& bytes);

// The number of elements spanned by sizes and strides; empty if negative or too large for an int64.
std::optional<int64_t> extent_of(std::span<const int64_t> sizes, std::span<const int64_t> strides);

// Writes the strides of a contiguous tensor to `strides`. Unlike c10's function, it wraps on overflow, since sizes may
// be unchecked input.
void contiguous_strides(std::span<const int64_t> sizes, std::vector<int64_t>& strides);
bool has_contiguous_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace shadowgraph
