// What a replay makes of tensors: others over the same storage, copies, and words for messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <string>

namespace shadowgraph {

// Returns a tensor over `source`'s storage or another one, with `source`'s dispatch keys, device and kind of
// TensorImpl.
at::Tensor with_geometry(const at::Tensor& source, c10::Storage storage, caffe2::TypeMeta dtype, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides, int64_t offset);
// Returns another tensor object with the same storage, geometry and version counter.
at::Tensor shallow_copy(const at::Tensor& tensor);
c10::Storage copy_of_storage(const at::Tensor& tensor);

// Gives operands a tensor of their own if they are the very tensor of an `out=` that is not dense, or has no elements
// (ReplayProgram::Step::loose_out).
void part_from_loose_outs(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

// "Float [2, 3] with strides [3, 1]"
std::string geometry_text(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace shadowgraph
