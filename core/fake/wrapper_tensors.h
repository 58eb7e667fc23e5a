// Tells tensors that hold other tensors and have no memory of their own: Python's DTensor, quantised parameters.
// Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <optional>

#include "core/fake/fake_tensor_impl.h"

namespace shadowgraph {

inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && !is_fake(tensor);
}

// Returns where a fake tensor, or a wrapper, says that it is; nothing for a real tensor.
inline std::optional<c10::Device> device_of_fake_or_wrapper(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (const FakeTensorImpl* fake = as_fake(tensor)) return fake->pretended_device();
  return is_wrapper(tensor) ? std::optional(tensor.device()) : std::nullopt;
}

}  // namespace shadowgraph
