// Has what programs from TorchScript and torch.export files have in common. Internal to core/.
#pragma once

#include <string_view>

#include "shadowgraph/capture/capture.h"

namespace shadowgraph {

// Returns the first output that is floating-point and requires grad: itself if it is a scalar, otherwise its mean.
// Throws Error if there is none.
at::Tensor first_output_loss(const Tensors& outputs);

// Appends the tensors that are defined, also those in lists, tuples and the values of dictionaries.
void add_tensors(const c10::IValue& value, Tensors& tensors);

// Returns "f32", as in TensorSpecText, or libtorch's name of a dtype that has none there.
std::string name_of_dtype(c10::ScalarType dtype);

// Walks over the instructions of a pickle and checks the sizes in them, which libtorch's reader allocates as stated.
// Internal to core/capture.

// Throws Error for a length beyond the bytes that are left, and for a memo's number beyond all bytes. What is no
// instruction of protocols 2 to 4 is refused, too. Linear, and runs nothing.
void check_pickle_sizes(std::string_view pickle);

}  // namespace shadowgraph
