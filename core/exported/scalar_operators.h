// Arithmetic on sizes, which export keeps as nodes, and questions about sizes. Internal to core/exported.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string_view>

namespace shadowgraph {

// As Python computes it; empty if the target is none of these. Throws Error for operands that it does not take, a
// division by zero, and integers that do not fit.
std::optional<c10::IValue> call_scalar_operator(std::string_view target, std::span<const c10::IValue> operands);

}  // namespace shadowgraph
