// Checks what the user gives an exported program against what it was exported for. Internal to core/exported.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/exported/program.h"
#include "shadowgraph/capture.h"

namespace shadowgraph {

// Describes the tensors that the user gives, in order: "x f32[s77 = 4 (2 to 64), 8]".
std::vector<std::string> describe_inputs(const SavedProgram& program);

struct BoundInputs {
  std::vector<TensorSpecText> tensors;        // of the user's tensors, in order
  std::vector<std::vector<int64_t>> strides;  // parallel; empty: contiguous
  std::vector<bool> requires_grad;
  SymbolValues symbols;
};

// `given` has one entry for each tensor of the user's, or none, for the sizes of the example inputs. Floating-point
// tensors are expected as `dtype` if one is given. Throws Error that names the input and the dimension.
BoundInputs bind_inputs(const SavedProgram& program, const std::string& path, std::span<const TensorSpecText> given,
                        std::optional<c10::ScalarType> dtype);

// Returns an integer of the user's: what the tensors' sizes say, or else what it was in the example.
int64_t number_for(const SavedInput& spec, const SymbolValues& symbols, const std::string& path);

}  // namespace shadowgraph
