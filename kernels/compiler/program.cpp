#include "shadowgraph/kernels/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace shadowgraph {
namespace {

constexpr const char* kOperationNames[] = {
    "load",   "gather", "in_range", "column", "scalar", "constant", "convert", "round",   "negate",  "abs",  "sqrt",
    "floor",  "ceil",   "trunc",    "rint",   "not",    "exp",      "exp0",    "expm1",   "log",     "tanh", "erf",
    "normal", "add",    "sub",      "mul",    "div",    "max",      "min",     "pow",     "and",     "or",   "xor",
    "eq",     "ne",     "lt",       "le",     "muladd", "select",   "row_sum", "row_max", "row_size"};

constexpr const char* kLayoutNames[] = {"contiguous", "broadcast", "strided"};

}  // namespace

const char* to_string(KernelOperation operation) { return kOperationNames[static_cast<size_t>(operation)]; }

bool KernelProgram::has_reductions() const {
  return std::ranges::any_of(expressions, [](const KernelExpression& e) {
    return e.operation == KernelOperation::kRowSum || e.operation == KernelOperation::kRowMaximum;
  });
}

bool KernelProgram::has_checks() const {
  return std::ranges::find(expressions, KernelOperation::kInRange, &KernelExpression::operation) != expressions.end();
}

std::string KernelProgram::text() const {
  std::string out =
      fmt::format("outer {} reduced {}{} scalars {}\n", outer_rank, reduced_rank, columns ? " columns" : "", scalars);
  for (size_t i = 0; i < operands.size(); ++i) {
    out += fmt::format("operand {} {} {}{}{}\n", i, c10::toString(operands[i].dtype),
                       kLayoutNames[static_cast<size_t>(operands[i].layout)], operands[i].of_row ? " of_row" : "",
                       operands[i].written ? " written" : "");
  }
  for (size_t i = 0; i < expressions.size(); ++i) {
    const KernelExpression& e = expressions[i];
    // Constants are written as bits, so that -0 and NaNs are told apart.
    out += fmt::format("e{} {} {} {} {} {} {} {} {:x}\n", i, to_string(e.operation), c10::toString(e.type),
                       e.operands[0], e.operands[1], e.operands[2], e.index, c10::toString(e.rounding),
                       std::bit_cast<uint64_t>(e.number));
  }
  for (const KernelStore& store : stores) out += fmt::format("store {} {}\n", store.operand, store.expression);
  return out;
}

}  // namespace shadowgraph
