// Tensors that hold other tensors and have no memory of their own: Python's DTensor, quantised parameters. Only their
// language can look inside (shadowgraph/capture.h, set_wrapper_parts). Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <vector>

#include "core/fake/fake_tensor_impl.h"

namespace shadowgraph {

inline bool is_wrapper(const at::Tensor& tensor) {
  return tensor.key_set().has(c10::DispatchKey::Python) && !is_fake(tensor);
}

// Returns the tensors inside, those of wrappers inside it, too. Throws Error if nobody can look inside.
std::vector<at::Tensor> parts_of(const at::Tensor& wrapper);

}  // namespace shadowgraph
