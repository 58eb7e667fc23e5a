// A device for PyTorch in a page of code: "host", the machine's own memory under another name (PrivateUse1). It has an
// allocator, a guard, copies and views, and no compute kernel at all. Whatever else is called falls back to the CPU, on
// the same memory, without a copy, and is counted.
//
//     host::register_device();
//     at::Tensor x = at::ones({2, 3}, at::Device("host:0"));
//     at::Tensor y = (x + x).relu();           // on the device
//     for (const auto& [op, calls] : host::fallbacks()) ...   // "aten::add.Tensor": 1, "aten::relu": 1, ...
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace host {

// Names the device. Its kernels are registered when the program is loaded; call this once, before the first tensor.
void register_device();

// Moves a parameter or buffer, for all who hold it; before the first backward. torch::nn::Module::to() refuses devices
// that libtorch's list of dense ones does not have (Tensor::set_data, "incompatible tensor type").
void move(const at::Tensor& tensor);

// Calls that ran on the CPU since the beginning or forget_fallbacks(), by operator.
std::map<std::string, int64_t> fallbacks();
void forget_fallbacks();

}  // namespace host
