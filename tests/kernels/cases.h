// Calls of operators through kernels, compared with eager. Internal to tests/kernels.
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

// One cache for all tests of the process, which compiles at once.
OperatorKernels& kernels();

inline c10::OperatorHandle operator_named(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// Arguments, with the schema's defaults for those that are not given.
torch::jit::Stack call_of(const c10::OperatorHandle& op, std::vector<c10::IValue> given);
// Tensors copied, with their geometry and what they share.
torch::jit::Stack copy_of(const torch::jit::Stack& stack);

// Runs the call both ways; results and operands must agree within `ulps` (0: bit for bit).
void compare(const std::string& name, std::vector<c10::IValue> given, double ulps = 0);

}  // namespace shadowgraph::kernel_tests
