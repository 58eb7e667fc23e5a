// How to describe a tensor value that is to be made, or given another geometry.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "ir/ids.h"

namespace shadowgraph {

struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::span<const int64_t> sizes;    // elements
  std::span<const int64_t> strides;  // elements, same length as sizes
  StorageId storage;
  int64_t offset = 0;  // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::Layout layout = c10::Layout::Strided;
  bool requires_grad = false;
};

}  // namespace shadowgraph
