#include "kernels/compiler/expression_source.h"

#include <fmt/format.h>

#include <cmath>

namespace shadowgraph {

using Operation = KernelOperation;
using c10::ScalarType;

const char* cpp_type(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "bool";
    case ScalarType::Byte:
      return "unsigned char";
    case ScalarType::Char:
      return "signed char";
    case ScalarType::Short:
      return "short";
    case ScalarType::Int:
      return "i32";
    case ScalarType::Long:
      return "i64";
    case ScalarType::Float:
      return "float";
    case ScalarType::Double:
      return "double";
    default:
      throw KernelError(std::string("a kernel cannot compute with ") + c10::toString(type));
  }
}

const char* stored_type(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
      return "unsigned char";
    case ScalarType::BFloat16:
      return "u16";
    case ScalarType::Half:
      return "_Float16";
    default:
      return cpp_type(type);
  }
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

std::string binary(const KernelExpression& e, const char* sign) {
  const char* type = cpp_type(e.type);
  return fmt::format("({})(e{} {} e{})", type, e.operands[0], sign, e.operands[1]);
}

}  // namespace

std::string expression_text(const KernelProgram& program, const KernelExpression& e, const std::string& element) {
  const std::string a = fmt::format("e{}", e.operands[0]);
  const std::string b = fmt::format("e{}", e.operands[1]);
  const char* type = cpp_type(e.type);
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
    case Operation::kAbsolute:
      return fmt::format("absolute({})", a);
    case Operation::kSquareRoot:
      return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_sqrtf" : "__builtin_sqrt", a);
    case Operation::kFloor:
      return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_floorf" : "__builtin_floor", a);
    case Operation::kCeil:
      return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_ceilf" : "__builtin_ceil", a);
    case Operation::kTruncate:
      return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_truncf" : "__builtin_trunc", a);
    case Operation::kRoundToEven:
      return fmt::format("{}({})", e.type == ScalarType::Float ? "__builtin_rintf" : "__builtin_rint", a);
    case Operation::kNot:
      return e.type == ScalarType::Bool ? fmt::format("!{}", a) : fmt::format("({})~{}", type, a);
    case Operation::kExponential:
      return fmt::format("exp_({})", a);
    case Operation::kExponentialOrZero:
      return fmt::format("exp0_({})", a);
    case Operation::kExponentialMinusOne:
      return fmt::format("expm1_({})", a);
    case Operation::kLogarithm:
      return fmt::format("log_({})", a);
    case Operation::kTangentHyperbolic:
      return fmt::format("tanh_({})", a);
    case Operation::kErrorFunction:
      return fmt::format("erf_({})", a);
    case Operation::kNormalDistribution:
      return fmt::format("cdf_({})", a);
    case Operation::kAdd:
      return binary(e, "+");
    case Operation::kSubtract:
      return binary(e, "-");
    case Operation::kMultiply:
      return binary(e, "*");
    case Operation::kDivide:
      return binary(e, "/");
    case Operation::kMaximum:
      return fmt::format("maximum<{}>({}, {})", type, a, b);
    case Operation::kMinimum:
      return fmt::format("minimum<{}>({}, {})", type, a, b);
    case Operation::kPower:
      return fmt::format("__builtin_pow({}, {})", a, b);
    case Operation::kAnd:
      return binary(e, "&");
    case Operation::kOr:
      return binary(e, "|");
    case Operation::kExclusiveOr:
      return binary(e, "^");
    case Operation::kEqual:
      return binary(e, "==");
    case Operation::kNotEqual:
      return binary(e, "!=");
    case Operation::kLess:
      return binary(e, "<");
    case Operation::kLessEqual:
      return binary(e, "<=");
    case Operation::kMultiplyAdd:
      return fmt::format("{}({}, {}, e{})", e.type == ScalarType::Float ? "__builtin_fmaf" : "__builtin_fma", a, b,
                         e.operands[2]);
    case Operation::kSelect:
      return fmt::format("({} ? {} : e{})", a, b, e.operands[2]);
    case Operation::kRowSize:
      return "count";
    case Operation::kRowSum:
    case Operation::kRowMaximum:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a reduction is no expression of its own");
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
