#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/compiler/program_source.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {
bool KernelProgram::has_reductions() const {
  return std::ranges::any_of(expressions, is_reduction, &KernelExpression::operation);
}

bool KernelProgram::has_checks() const {
  return std::ranges::find(expressions, KernelOperation::kInRange, &KernelExpression::operation) != expressions.end();
}

std::string KernelProgram::text() const {
  std::string out =
      fmt::format("outer {} reduced {}{} scalars {}\n", outer_rank, reduced_rank, columns ? " columns" : "", scalars);
  for (size_t i = 0; i < operands.size(); ++i) {
    out += fmt::format("operand {} {} {}{}{}\n", i, c10::toString(operands[i].dtype), to_string(operands[i].layout),
                       operands[i].of_row ? " of_row" : "", operands[i].written ? " written" : "");
  }
  for (size_t i = 0; i < expressions.size(); ++i) {
    const KernelExpression& e = expressions[i];
    // Constants are written as bits, to distinguish -0 and NaNs.
    out += fmt::format("e{} {} {} {} {} {} {} {} {:x}\n", i, to_string(e.operation), c10::toString(e.type),
                       e.operands[0], e.operands[1], e.operands[2], e.index, c10::toString(e.rounding),
                       std::bit_cast<uint64_t>(e.number));
  }
  for (const KernelStore& store : stores) out += fmt::format("store {} {}\n", store.operand, store.expression);
  return out;
}

using Operation = KernelOperation;
using c10::ScalarType;

const char* cpp_type(ScalarType type) {
  using Row = std::pair<ScalarType, const char*>;
  static constexpr Row kTypes[] = {{ScalarType::Bool, "bool"},        {ScalarType::Byte, "unsigned char"},
                                   {ScalarType::Char, "signed char"}, {ScalarType::Short, "short"},
                                   {ScalarType::Int, "i32"},          {ScalarType::Long, "i64"},
                                   {ScalarType::Float, "float"},      {ScalarType::Double, "double"}};
  const auto* const row = std::ranges::find(kTypes, type, &Row::first);
  if (row == std::end(kTypes))
    throw UnsupportedError(std::string("kernels do not support the dtype ") + c10::toString(type));
  return row->second;
}

const char* stored_type(ScalarType type) {
  if (type == ScalarType::Bool) return "unsigned char";
  if (type == ScalarType::BFloat16) return "u16";
  return type == ScalarType::Half ? "_Float16" : cpp_type(type);
}

uint32_t arity(Operation operation) {
  if (operation == Operation::kGather || operation == Operation::kInRange) return 2;
  if (operation <= Operation::kConstant || operation == Operation::kRowSize) return 0;
  if (operation >= Operation::kAdd && operation <= Operation::kLessEqual) return 2;
  return operation == Operation::kMultiplyAdd || operation == Operation::kSelect ? 3 : 1;
}

bool is_reduction(Operation operation) {
  return operation == Operation::kRowSum || operation == Operation::kRowMaximum;
}

bool is_costly(Operation operation) {
  return (operation >= Operation::kExponential && operation <= Operation::kNormalDistribution) ||
         operation == Operation::kDivide || operation == Operation::kSquareRoot || operation == Operation::kPower;
}

namespace {

std::string literal(double number) {
  if (std::isnan(number)) return "__builtin_nan(\"\")";
  if (std::isinf(number)) return number > 0 ? "__builtin_inf()" : "-__builtin_inf()";
  return fmt::format("{:a}", number);
}

std::string load(ScalarType dtype, const std::string& element) {
  if (dtype == ScalarType::BFloat16) return fmt::format("bf16_load({})", element);
  if (dtype == ScalarType::Half) return fmt::format("(float){}", element);
  if (dtype == ScalarType::Bool) return fmt::format("({} != 0)", element);
  return element;
}

// Returns the unary function of an operation; empty for others.
std::string_view function_of(Operation operation, ScalarType type) {
  struct Row {
    Operation operation;
    std::string_view of_double, of_float;
  };
  static constexpr Row kFunctions[] = {{Operation::kAbsolute, "absolute", "absolute"},
                                       {Operation::kSquareRoot, "__builtin_sqrt", "__builtin_sqrtf"},
                                       {Operation::kFloor, "__builtin_floor", "__builtin_floorf"},
                                       {Operation::kCeil, "__builtin_ceil", "__builtin_ceilf"},
                                       {Operation::kTruncate, "__builtin_trunc", "__builtin_truncf"},
                                       {Operation::kRoundToEven, "__builtin_rint", "__builtin_rintf"},
                                       {Operation::kExponential, "exp_", "exp_"},
                                       {Operation::kExponentialOrZero, "exp0_", "exp0_"},
                                       {Operation::kExponentialMinusOne, "expm1_", "expm1_"},
                                       {Operation::kLogarithm, "log_", "log_"},
                                       {Operation::kTangentHyperbolic, "tanh_", "tanh_"},
                                       {Operation::kErrorFunction, "erf_", "erf_"},
                                       {Operation::kNormalDistribution, "cdf_", "cdf_"}};
  const auto* const row = std::ranges::find(kFunctions, operation, &Row::operation);
  if (row == std::end(kFunctions)) return {};
  return type == ScalarType::Float ? row->of_float : row->of_double;
}

// Returns the binary C++ operator of an operation; empty for others.
std::string_view sign_of(Operation operation) {
  using Row = std::pair<Operation, std::string_view>;
  static constexpr Row kSigns[] = {
      {Operation::kAdd, "+"},    {Operation::kSubtract, "-"},    {Operation::kMultiply, "*"},
      {Operation::kDivide, "/"}, {Operation::kAnd, "&"},         {Operation::kOr, "|"},
      {Operation::kEqual, "=="}, {Operation::kExclusiveOr, "^"}, {Operation::kNotEqual, "!="},
      {Operation::kLess, "<"},   {Operation::kLessEqual, "<="}};
  const auto* const row = std::ranges::find(kSigns, operation, &Row::first);
  return row == std::end(kSigns) ? std::string_view() : row->second;
}

}  // namespace

std::string expression_text(const KernelProgram& program, const KernelExpression& e, const std::string& element) {
  const std::string a = fmt::format("e{}", e.operands[0]);
  const std::string b = fmt::format("e{}", e.operands[1]);
  const char* type = cpp_type(e.type);
  if (const auto function = function_of(e.operation, e.type); !function.empty()) {
    return fmt::format("{}({})", function, a);
  }
  if (const auto sign = sign_of(e.operation); !sign.empty()) return fmt::format("({})({} {} {})", type, a, sign, b);
  switch (e.operation) {
    case Operation::kLoad:
      return load(program.operands[e.index].dtype, element);
    case Operation::kGather:
      return load(program.operands[e.index].dtype, fmt::format("(&{})[{} * {}]", element, a, b));
    case Operation::kInRange:
      return fmt::format("((u64){0} < (u64){1} ? {0} : (bad = 1, (i64)0))", a, b);
    case Operation::kColumn:
      return "j";
    case Operation::kScalar:
      return e.type == ScalarType::Double ? fmt::format("bits_d(scalars[{}])", e.index)
                                          : fmt::format("scalars[{}]", e.index);
    case Operation::kConstant:
      return fmt::format("({}){}", type, literal(e.number));
    case Operation::kConvert:
      return e.type == ScalarType::Bool ? fmt::format("({} != 0)", a) : fmt::format("({}){}", type, a);
    case Operation::kRound:
      return fmt::format("{}({})", e.rounding == ScalarType::Half ? "f16_round" : "bf16_round", a);
    case Operation::kNegate:
      return fmt::format("({})-{}", type, a);
    case Operation::kNot:
      return e.type == ScalarType::Bool ? fmt::format("!{}", a) : fmt::format("({})~{}", type, a);
    case Operation::kMaximum:
      return fmt::format("maximum<{}>({}, {})", type, a, b);
    case Operation::kMinimum:
      return fmt::format("minimum<{}>({}, {})", type, a, b);
    case Operation::kPower:
      return fmt::format("__builtin_pow({}, {})", a, b);
    case Operation::kMultiplyAdd:
      return fmt::format("{}({}, {}, e{})", e.type == ScalarType::Float ? "__builtin_fmaf" : "__builtin_fma", a, b,
                         e.operands[2]);
    case Operation::kSelect:
      return fmt::format("({} ? {} : e{})", a, b, e.operands[2]);
    case Operation::kRowSize:
      return "count";
    default:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a reduction is not a single expression");
}

bool is_rounded(const KernelProgram& program, uint32_t expression, ScalarType dtype) {
  const KernelExpression& e = program.expressions[expression];
  switch (e.operation) {
    case Operation::kLoad:
    case Operation::kGather:
      return program.operands[e.index].dtype == dtype;
    case Operation::kRound:
      return e.rounding == dtype;
    case Operation::kConstant:
      return e.number == 0;
    case Operation::kNegate:
    case Operation::kAbsolute:
      return is_rounded(program, e.operands[0], dtype);
    case Operation::kMaximum:
    case Operation::kMinimum:
      return is_rounded(program, e.operands[0], dtype) && is_rounded(program, e.operands[1], dtype);
    case Operation::kSelect:
      return is_rounded(program, e.operands[1], dtype) && is_rounded(program, e.operands[2], dtype);
    default:
      return false;
  }
}

std::string stored_text(const KernelProgram& program, const KernelStore& store) {
  const ScalarType dtype = program.operands[store.operand].dtype;
  const std::string value = fmt::format("e{}", store.expression);
  if (dtype == ScalarType::BFloat16) {
    const bool rounded = is_rounded(program, store.expression, dtype);
    return fmt::format("{}({})", rounded ? "bf16_high" : "bf16_bits", value);
  }
  return fmt::format("({}){}", stored_type(dtype), value);
}

}  // namespace shadowgraph
