// Shared by programs loaded from TorchScript and torch.export files.
#pragma once

#include "shadowgraph/capture/capture.h"

namespace shadowgraph {

// Returns the first floating-point output that requires grad: itself if it is a scalar, otherwise its mean. Throws
// Error if there is none.
at::Tensor first_output_loss(const Tensors& outputs);

// Appends all defined tensors, including those in lists, tuples and the values of dictionaries.
void add_tensors(const c10::IValue& value, Tensors& tensors);

// Returns "f32", as in TensorSpec, or libtorch's name for dtypes not available there.
std::string name_of_dtype(c10::ScalarType dtype);

// Validates the sizes in a pickle, which libtorch's unpickler allocates unchecked. Throws Error for a length beyond the
// remaining bytes, a memo index beyond the total, and opcodes outside of protocols 2 to 4. Linear; executes nothing.
void check_pickle_sizes(std::string_view pickle);

}  // namespace shadowgraph
