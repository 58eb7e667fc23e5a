#include "core/exported/call_arguments.h"

#include <ATen/ScalarOps.h>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

const c10::IValue& value_of_operand(const ExportedOperand& operand, const ValueTable& values) {
  return operand.kind == ExportedOperand::Kind::kValue ? values[operand.value] : operand.literal;
}

[[noreturn]] void refuse_argument(const c10::Argument& argument, const std::string& what) {
  throw Error("the argument '" + argument.name() + "' is " + what + ", where the operator takes " +
              argument.type()->str());
}

std::string kind_text(const ExportedOperand& operand, const ValueTable& values) {
  switch (operand.kind) {
    case ExportedOperand::Kind::kList:
      return "a list";
    case ExportedOperand::Kind::kGraph:
      return "a graph";
    case ExportedOperand::Kind::kUnsupported:
      return operand.literal.toStringRef();
    case ExportedOperand::Kind::kLiteral:
    case ExportedOperand::Kind::kValue:
      return "of type " + value_of_operand(operand, values).tagKind();
  }
  return "";
}

at::Tensor number_as_tensor(const c10::IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());  // a real CPU tensor, inside a fake mode too
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Converts a value that is no list; empty if it does not fit.
std::optional<c10::IValue> converted(const c10::TypePtr& type, const c10::IValue& value) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (value.isTensor()) return value;
      if (value.isNone()) return at::Tensor();
      if (value.isScalar() || value.isBool()) return number_as_tensor(value);
      return std::nullopt;
    case c10::TypeKind::NumberType:
      if (value.isScalar() || value.isBool()) return value;
      if (value.isTensor()) return value.toTensor().item();
      return std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.isInt()) return value;
      if (value.isBool()) return static_cast<int64_t>(value.toBool());
      return std::nullopt;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      if (value.isDouble()) return value;
      if (value.isInt()) return static_cast<double>(value.toInt());
      return std::nullopt;
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return value.isBool() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::StringType:
      return value.isString() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::DeviceObjType:
      return value.isDevice() ? std::optional(value) : std::nullopt;
    case c10::TypeKind::OptionalType:
      if (value.isNone()) return value;
      return converted(type->expectRef<c10::OptionalType>().getElementType(), value);
    default:
      return std::nullopt;
  }
}

// Checks dtypes, layouts and memory formats, which are integers to a schema: numbers that are none of them must not
// reach a kernel.
bool is_of_enumeration(const c10::Argument& argument, const c10::IValue& value) {
  c10::TypePtr type = argument.real_type();
  if (type->kind() == c10::TypeKind::OptionalType) type = type->expectRef<c10::OptionalType>().getElementType();
  int64_t count = INT64_MAX;
  if (type->kind() == c10::TypeKind::ScalarTypeType) count = static_cast<int64_t>(c10::ScalarType::Undefined);
  if (type->kind() == c10::TypeKind::LayoutType) count = static_cast<int64_t>(c10::Layout::NumOptions);
  if (type->kind() == c10::TypeKind::MemoryFormatType) count = static_cast<int64_t>(c10::MemoryFormat::NumOptions);
  if (count == INT64_MAX) return true;
  return value.isInt() && value.toInt() >= 0 && value.toInt() < count;
}

c10::IValue list_for(const c10::Argument& argument, const c10::TypePtr& element, const ExportedOperand& operand,
                     const ValueTable& values) {
  // The type decides between lists of optional tensors, of tensors and of numbers. Symbolic types are plain ones at run
  // time.
  c10::TypePtr stored = element;
  if (element->kind() == c10::TypeKind::SymIntType) stored = c10::IntType::get();
  if (element->kind() == c10::TypeKind::SymFloatType) stored = c10::FloatType::get();
  if (element->kind() == c10::TypeKind::SymBoolType) stored = c10::BoolType::get();
  c10::impl::GenericList list(stored);
  const auto add = [&](const ExportedOperand& one) {
    if (one.kind != ExportedOperand::Kind::kLiteral && one.kind != ExportedOperand::Kind::kValue) {
      refuse_argument(argument, "a list with " + kind_text(one, values));
    }
    auto value = converted(stored, value_of_operand(one, values));
    if (!value) refuse_argument(argument, "a list with an element " + kind_text(one, values));
    list.push_back(*std::move(value));
  };
  if (operand.kind == ExportedOperand::Kind::kList) {
    for (const ExportedOperand& one : operand.elements) add(one);
  } else {
    // One number stands for all: int[2] stride=1.
    for (int i = 0; i < argument.N().value_or(1); ++i) add(operand);
  }
  return list;
}

void append_plain(const ExportedOperand& operand, const ValueTable& values, std::vector<c10::IValue>& result) {
  switch (operand.kind) {
    case ExportedOperand::Kind::kLiteral:
    case ExportedOperand::Kind::kValue:
      result.push_back(value_of_operand(operand, values));
      return;
    case ExportedOperand::Kind::kList:
      for (const ExportedOperand& element : operand.elements) append_plain(element, values, result);
      return;
    case ExportedOperand::Kind::kGraph:
    case ExportedOperand::Kind::kUnsupported:
      throw Error("it is given " + kind_text(operand, values) + ", which is not supported there");
  }
}

}  // namespace

c10::IValue argument_for(const c10::Argument& argument, const ExportedOperand& operand, const ValueTable& values) {
  c10::TypePtr type = argument.type();
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (operand.kind == ExportedOperand::Kind::kLiteral && operand.literal.isNone()) return {};
    type = type->expectRef<c10::OptionalType>().getElementType();
  }
  if (operand.kind == ExportedOperand::Kind::kGraph || operand.kind == ExportedOperand::Kind::kUnsupported) {
    refuse_argument(argument, kind_text(operand, values));
  }
  if (type->kind() == c10::TypeKind::ListType) {
    return list_for(argument, type->expectRef<c10::ListType>().getElementType(), operand, values);
  }
  if (operand.kind == ExportedOperand::Kind::kList) refuse_argument(argument, "a list");
  auto value = converted(type, value_of_operand(operand, values));
  if (!value || !is_of_enumeration(argument, *value)) refuse_argument(argument, kind_text(operand, values));
  return *std::move(value);
}

std::vector<c10::IValue> plain_arguments(std::span<const NamedOperand> operands, const ValueTable& values) {
  std::vector<c10::IValue> result;
  for (const NamedOperand& operand : operands) append_plain(operand.operand, values, result);
  return result;
}

}  // namespace shadowgraph
