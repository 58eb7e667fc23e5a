// What is inside a wrapper (core/fake/wrapper_tensors.h): only its language can look (set_wrapper_parts). Internal to
// core/capture.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace shadowgraph {

// Returns the tensors inside, those of wrappers inside it, too. Empty: it holds none and is a tensor itself. Throws Error if nobody can look inside.
std::vector<at::Tensor> parts_of(const at::Tensor& wrapper);

}  // namespace shadowgraph
