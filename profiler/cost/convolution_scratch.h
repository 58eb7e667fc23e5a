// Memory that cuDNN's convolutions take: operands laid out anew.
#pragma once

#include <cstdint>
#include <optional>

#include "shadowgraph/profile/operand_shapes.h"

namespace shadowgraph {

// Bytes of a call of aten::convolution; empty for volumes, lines, transposed ones and float64.
std::optional<int64_t> convolution_scratch(const OperandShapes& call);
// Bytes of a call of aten::convolution_backward.
std::optional<int64_t> convolution_backward_scratch(const OperandShapes& call);

}  // namespace shadowgraph
