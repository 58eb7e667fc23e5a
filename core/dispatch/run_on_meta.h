// Runs the kernel of one call on meta tensors: a rule, libtorch's own, or the answer to what the program reads.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include "core/dispatch/operator_info.h"

namespace shadowgraph {

// Replaces the operands on the stack by results, by the operator's route; fakes answer "meta" meanwhile (KernelScope).
// Throws DataDependentError and NoRuleError, and passes on what the kernel throws.
void run_on_meta(const OperatorInfo& info, torch::jit::Stack* stack);
// The same without copies of operands, which libtorch's kernels on the CPU may make.
void run_kernel(const OperatorInfo& info, torch::jit::Stack* stack);

[[noreturn]] void throw_data_dependent(const OperatorInfo& info);
// Says whether an error comes from a composite that copies a tensor to the CPU and reads it through a pointer. All
// errors of libtorch are c10::Error, so only the words of TensorImpl tell this one from the operator's own.
bool reads_data(const c10::Error& error);

}  // namespace shadowgraph
