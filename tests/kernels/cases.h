// Calls operators through kernels and compares with eager. Internal to tests/kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <gtest/gtest.h>

#include <string>

#include "shadowgraph/kernels/kernel.h"
#include "tests/kernels/differences.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph::kernel_tests {

// One cache for all tests of the process, which compiles synchronously.
OperatorKernels& kernels();

inline c10::OperatorHandle operator_named(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// Completes the arguments with the schema's defaults.
torch::jit::Stack call_of(const c10::OperatorHandle& op, std::vector<c10::IValue> given);
// Copies tensors, keeping their geometry and aliases.
torch::jit::Stack copy_of(const torch::jit::Stack& stack);

// Runs the call in eager and with the kernel; results and operands must agree within `ulps` (0: bitwise).
void compare(const std::string& name, std::vector<c10::IValue> given, double ulps = 0);

}  // namespace shadowgraph::kernel_tests
