// Does arithmetic on sizes, which export keeps as nodes, and answers questions about sizes. Internal to core/exported.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string_view>

namespace shadowgraph {

// Computes as Python does; empty if the target is none of these. Throws Error for operands that the operator does not
// take, a division by zero, and integers that do not fit.
std::optional<c10::IValue> call_scalar_operator(std::string_view target, std::span<const c10::IValue> operands);

}  // namespace shadowgraph
