// What operators compute, a row each. Internal to kernels/compiler.
#pragma once

#include <string_view>
#include <vector>

#include "kernels/compiler/operator_call.h"

namespace shadowgraph {

struct OperatorRow {
  const char* name;  // without namespace and overload; in-place variants have the row of the functional one
  // One expression a result. Throws KernelError for what it does not do.
  std::vector<Typed> (*make)(const OperatorCall& call);
  // Results within some ulps of eager's, not its bits.
  bool inexact = false;
  // The trailing dimensions of argument `input` that make a row, for operators that reduce them; nullptr: pointwise.
  int64_t (*row_dims)(const OperatorCall& call) = nullptr;
  size_t input = 0;
};

// nullptr if there is none. `name` is an operator's with namespace and overload: "aten::add_.Tensor".
const OperatorRow* find_operator_row(std::string_view name);

std::vector<OperatorRow> pointwise_rows();
std::vector<OperatorRow> row_reduction_rows();

}  // namespace shadowgraph
