// Has what programs from TorchScript and torch.export files have in common. Internal to core/.
#pragma once

#include "shadowgraph/capture.h"

namespace shadowgraph {

// Returns the first output that is floating-point and requires grad: itself if it is a scalar, otherwise its mean.
// Throws Error if there is none.
at::Tensor first_output_loss(const Tensors& outputs);

// Returns "f32", as in TensorSpecText, or libtorch's name of a dtype that has none there.
std::string name_of_dtype(c10::ScalarType dtype);

}  // namespace shadowgraph
