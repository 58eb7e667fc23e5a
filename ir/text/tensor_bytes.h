// A constant tensor's bytes, as text, JSON and comparison see them. No dispatcher call is made for CPU tensors:
// printing must work while a fake mode would answer for at::empty.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace shadowgraph {

struct TensorBytes {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  // The memory from the first element to the last, gaps between elements zeroed.
  std::vector<uint8_t> bytes;
};

// Empty for a tensor without readable contents: undefined, meta, sparse, quantized, a wrapper.
// A tensor of another device is copied to the CPU.
std::optional<TensorBytes> tensor_bytes(const at::Tensor& tensor);

// The CPU tensor again. An empty optional if sizes, strides and bytes do not fit together.
std::optional<at::Tensor> tensor_of(const TensorBytes& bytes);

// The number of elements that sizes and strides span; empty if negative or too large for an int64.
std::optional<int64_t> extent_of(std::span<const int64_t> sizes, std::span<const int64_t> strides);

// The strides of a contiguous tensor, into `strides`. Unlike c10's, it wraps around: sizes may be anybody's, unchecked
// yet.
void contiguous_strides(std::span<const int64_t> sizes, std::vector<int64_t>& strides);
bool has_contiguous_strides(std::span<const int64_t> sizes, std::span<const int64_t> strides);

}  // namespace shadowgraph
