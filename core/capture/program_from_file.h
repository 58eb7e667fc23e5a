// What programs from files have in common: TorchScript and torch.export. Internal to core/.
#pragma once

#include "shadowgraph/capture.h"

namespace shadowgraph {

// The first output that is floating-point and requires grad: itself if it is a scalar, otherwise its mean. Throws Error
// if there is none.
at::Tensor first_output_loss(const Tensors& outputs);

// "f32", as in TensorSpecText; libtorch's name of a dtype that has none there.
std::string name_of_dtype(c10::ScalarType dtype);

}  // namespace shadowgraph
