// A minimal PyTorch device "host" (PrivateUse1) that uses host memory. It implements an allocator, a device guard,
// copies and views, but no compute kernels. All other operators fall back to the CPU on the same memory, without a
// copy, and are counted.
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

// Registers the device name. Call once, before the first tensor. Kernels are registered when the program is loaded.
void register_device();

// Moves a parameter or buffer in place; call before the first backward. torch::nn::Module::to() does not support this
// device type (Tensor::set_data throws "incompatible tensor type").
void move(const at::Tensor& tensor);

// Number of CPU fallbacks per operator since the start or the last forget_fallbacks().
std::map<std::string, int64_t> fallbacks();
void forget_fallbacks();

}  // namespace host
