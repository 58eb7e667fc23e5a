#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "kernels/compiler/operator_table.h"
#include "kernels/compiler/program_source.h"

namespace shadowgraph {

using c10::ScalarType;
using Operation = KernelOperation;

ScalarType computed_as(ScalarType dtype) {
  using enum ScalarType;
  static constexpr ScalarType kComputed[] = {Bool, Byte, Char, Short, Int, Long, Float, Double};
  if (has_two_bytes(dtype)) return Float;
  if (std::ranges::find(kComputed, dtype) != std::end(kComputed)) return dtype;
  throw UnsupportedError(std::string("kernels do not support the dtype ") + c10::toString(dtype));
}

Typed ExpressionBuilder::append(KernelExpression expression, ScalarType dtype) {
  program_.expressions.push_back(expression);
  return {static_cast<uint32_t>(program_.expressions.size() - 1), dtype, this};
}

Typed ExpressionBuilder::load(uint32_t operand, ScalarType dtype) {
  return append({.operation = Operation::kLoad, .type = computed_as(dtype), .index = operand}, dtype);
}

Typed ExpressionBuilder::scalar(int64_t bits, ScalarType type, size_t argument) {
  scalar_arguments_.push_back(static_cast<uint32_t>(argument));
  scalars_.push_back(bits);
  return append({.operation = Operation::kScalar, .type = type, .index = program_.scalars++}, type);
}

Typed ExpressionBuilder::constant(double value, ScalarType dtype) {
  return append({.operation = Operation::kConstant, .type = computed_as(dtype), .number = value}, dtype);
}

Typed ExpressionBuilder::convert(Typed value, ScalarType dtype) {
  const ScalarType from = program_.expressions[value.expression].type, to = computed_as(dtype);
  if (from != to) {
    value = append({.operation = Operation::kConvert, .type = to, .operands = {value.expression}}, to);
  }
  if (has_two_bytes(dtype) && !is_rounded(program_, value.expression, dtype)) {
    return append(
        {.operation = Operation::kRound, .type = ScalarType::Float, .operands = {value.expression}, .rounding = dtype},
        dtype);
  }
  return {value.expression, dtype, this};
}

Typed ExpressionBuilder::apply(Operation operation, Typed a) {
  const ScalarType type = program_.expressions[a.expression].type;
  return append({.operation = operation, .type = type, .operands = {a.expression}}, a.dtype);
}

Typed ExpressionBuilder::apply(Operation operation, Typed a, Typed b) {
  const ScalarType type = program_.expressions[a.expression].type;
  TORCH_INTERNAL_ASSERT(type == program_.expressions[b.expression].type);
  const bool compares = operation >= Operation::kEqual && operation <= Operation::kLessEqual;
  return append(
      {.operation = operation, .type = compares ? ScalarType::Bool : type, .operands = {a.expression, b.expression}},
      compares ? ScalarType::Bool : a.dtype);
}

Typed ExpressionBuilder::apply(Operation operation, Typed a, Typed b, Typed c) {
  const ScalarType type = program_.expressions[b.expression].type;
  TORCH_INTERNAL_ASSERT(type == program_.expressions[c.expression].type);
  return append({.operation = operation, .type = type, .operands = {a.expression, b.expression, c.expression}},
                b.dtype);
}

Typed ExpressionBuilder::row_size() {
  return append({.operation = Operation::kRowSize, .type = ScalarType::Double}, ScalarType::Double);
}

Typed ExpressionBuilder::gather(uint32_t operand, ScalarType dtype, Typed index, Typed stride) {
  return append({.operation = Operation::kGather,
                 .type = computed_as(dtype),
                 .operands = {index.expression, stride.expression},
                 .index = operand},
                dtype);
}

Typed ExpressionBuilder::column() {
  return append({.operation = Operation::kColumn, .type = ScalarType::Long}, ScalarType::Long);
}

bool OperatorCall::is_none(size_t i) const { return argument(i).kind == ArgumentKind::kNone; }

bool OperatorCall::is_single(size_t i) const {
  const Argument& a = argument(i);
  if (a.kind == ArgumentKind::kInt || a.kind == ArgumentKind::kFloat || a.kind == ArgumentKind::kBool) return true;
  return a.kind == ArgumentKind::kValue &&
         std::ranges::all_of(graph_.sizes(a.ref.value), [](int64_t size) { return size == 1; });
}

Typed OperatorCall::tensor(size_t i) const {
  const Argument& a = argument(i);
  switch (a.kind) {
    case ArgumentKind::kValue:
      if (graph_.value(a.ref.value).kind != ValueKind::kTensor)
        throw UnsupportedError("a number computed by another node");
      return content_(a.ref.value, nullptr);
    case ArgumentKind::kInt:
      return build.scalar(a.i, i);
    case ArgumentKind::kBool:
      return build.scalar(int64_t{a.b}, i);
    case ArgumentKind::kFloat:
      return build.scalar(a.d, i);
    default:
      throw UnsupportedError("argument " + std::to_string(i) + " is neither a tensor nor a number");
  }
}

const Argument& OperatorCall::deciding(size_t i, ArgumentKind kind, const char* what) const {
  decisive_ |= uint64_t{1} << i;
  if (argument(i).kind != kind) throw UnsupportedError("argument " + std::to_string(i) + " is not " + what);
  return argument(i);
}

double OperatorCall::number(size_t i) const {
  if (argument(i).kind == ArgumentKind::kFloat) return deciding(i, ArgumentKind::kFloat, "a number").d;
  return static_cast<double>(integer(i));
}

int64_t OperatorCall::integer(size_t i) const {
  if (argument(i).kind == ArgumentKind::kBool) return deciding(i, ArgumentKind::kBool, "a number").b ? 1 : 0;
  return deciding(i, ArgumentKind::kInt, "a constant integer").i;
}

std::string_view OperatorCall::string(size_t i) const {
  return graph_.text(deciding(i, ArgumentKind::kString, "a string").string);
}

std::span<const int64_t> OperatorCall::ints(size_t i) const {
  return graph_.ints(deciding(i, ArgumentKind::kIntList, "a list of integers"));
}

bool OperatorCall::is_ints(size_t i) const { return argument(i).kind == ArgumentKind::kIntList; }

ScalarType OperatorCall::promoted(std::initializer_list<size_t> operands) const {
  // A 0-dim tensor, and then a number, only affects the dtype if it is of a higher category: bool, integer, floating
  // point.
  ScalarType by_category[3] = {ScalarType::Undefined, ScalarType::Undefined, ScalarType::Undefined};
  const auto add = [](ScalarType& into, ScalarType dtype) {
    into = into == ScalarType::Undefined ? dtype : c10::promoteTypes(into, dtype);
  };
  for (const size_t i : operands) {
    const Argument& a = argument(i);
    if (a.kind == ArgumentKind::kValue) {
      const Value& value = graph_.value(a.ref.value);
      add(by_category[value.rank != 0 ? 0 : 1], value.dtype);
    } else if (a.kind == ArgumentKind::kFloat) {
      add(by_category[2], c10::get_default_dtype_as_scalartype());
    } else if (a.kind == ArgumentKind::kBool) {
      add(by_category[2], ScalarType::Bool);
    } else if (a.kind == ArgumentKind::kInt) {
      add(by_category[2], ScalarType::Long);
    }
  }
  const auto combine = [](ScalarType higher, ScalarType lower) {
    if (higher == ScalarType::Undefined) return lower;
    if (lower == ScalarType::Undefined || c10::isFloatingType(higher)) return higher;
    if (higher == ScalarType::Bool || c10::isFloatingType(lower)) return c10::promoteTypes(higher, lower);
    return higher;
  };
  return combine(by_category[0], combine(by_category[1], by_category[2]));
}

ScalarType OperatorCall::promoted_to_float(std::initializer_list<size_t> operands) const {
  const ScalarType dtype = promoted(operands);
  return c10::isIntegralType(dtype, /*includeBool=*/true) ? c10::get_default_dtype_as_scalartype() : dtype;
}

Typed OperatorCall::operand(size_t i, ScalarType dtype) const {
  const Typed value = tensor(i);
  if (argument(i).kind != ArgumentKind::kValue) {
    return {build.convert(value, computed_as(dtype)).expression, dtype, &build};
  }
  return build.convert(value, dtype);
}

ValueId OperatorCall::value(size_t i) const {
  const Argument& a = argument(i);
  if (a.kind != ArgumentKind::kValue) throw UnsupportedError("argument " + std::to_string(i) + " is not a tensor");
  return a.ref.value;
}

Typed OperatorCall::along(size_t i, const std::vector<int64_t>& dims) const { return content_(value(i), &dims); }

Typed OperatorCall::in_range(size_t i, int64_t dim, Typed index) const {
  const int64_t size = graph_.sizes(argument(i).ref.value)[static_cast<size_t>(dim)];
  if (size == 0) throw UnsupportedError("an index into a dimension of size 0");
  return build.apply(Operation::kInRange, build.convert(index, ScalarType::Long), build.fixed(size));
}

Typed OperatorCall::gathered(size_t i, const std::vector<int64_t>& dims, Typed index) const {
  const ValueId v = argument(i).ref.value;
  const auto dim = static_cast<size_t>(std::ranges::find(dims, -1) - dims.begin());
  const Typed stride = build.fixed(graph_.strides(v)[dim]);
  return build.gather(source_(v, dims), graph_.value(v).dtype, in_range(i, static_cast<int64_t>(dim), index), stride);
}

ScalarType OperatorCall::result_dtype(size_t i) const { return graph_.value(graph_.results(node_)[i].ref.value).dtype; }

int64_t OperatorCall::rank(size_t i) const { return graph_.value(value(i)).rank; }

}  // namespace shadowgraph
