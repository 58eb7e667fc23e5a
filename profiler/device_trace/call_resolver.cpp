#include "profiler/device_trace/call_resolver.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using c10::TypeKind;

c10::TypePtr without_optional(const c10::TypePtr& type) {
  const auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

bool is_number_type(TypeKind kind) {
  return kind == TypeKind::IntType || kind == TypeKind::FloatType || kind == TypeKind::BoolType ||
         kind == TypeKind::NumberType || kind == TypeKind::SymIntType || kind == TypeKind::SymFloatType ||
         kind == TypeKind::SymBoolType || kind == TypeKind::ScalarTypeType || kind == TypeKind::LayoutType ||
         kind == TypeKind::MemoryFormatType;
}

bool takes_input(const TraceInput& input, const c10::Argument& argument) {
  const c10::TypePtr type = without_optional(argument.type());
  const auto list = type->cast<c10::ListType>();
  if (input.is_tensor()) return type->kind() == TypeKind::TensorType;
  if (input.is_tensors()) return list && without_optional(list->getElementType())->kind() == TypeKind::TensorType;
  if (input.type == "Scalar") return is_number_type(type->kind());
  if (input.type == "ScalarList") return list && is_number_type(list->getElementType()->kind());
  if (input.type == "GenericList") return list != nullptr;
  return true;  // None, a string, a device, a generator
}

struct Number {
  bool is_bool = false, is_int = false;
  int64_t whole = 0;
  double real = 0;
};

std::optional<Number> number_of(std::string_view text) {
  if (text == "True" || text == "False") {
    const int64_t value = text == "True" ? 1 : 0;
    return Number{.is_bool = true, .whole = value, .real = static_cast<double>(value)};
  }
  Number number;
  const char* end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, number.whole); error == std::errc() && at == end) {
    number.is_int = true;
    number.real = static_cast<double>(number.whole);
    return number;
  }
  const auto [at, error] = std::from_chars(text.data(), end, number.real);
  if (error != std::errc() || at != end) return std::nullopt;
  number.whole = std::abs(number.real) < 9e18 ? static_cast<int64_t>(number.real) : 0;
  return number;
}

std::optional<std::vector<Number>> numbers_of(std::string_view text) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::vector<Number> numbers;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view one = text.substr(0, comma);
    while (one.starts_with(' ')) one.remove_prefix(1);
    const auto number = number_of(one);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

c10::IValue value_of(const Number& number, TypeKind kind) {
  switch (kind) {
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      return number.whole != 0;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      return number.real;
    case TypeKind::NumberType:
      if (number.is_bool) return number.whole != 0;
      return number.is_int ? c10::IValue(number.whole) : c10::IValue(number.real);
    default:
      return number.whole;
  }
}

c10::IValue list_of(const std::vector<Number>& numbers, TypeKind kind) {
  const auto list = [&](auto like, const auto& value) {
    c10::List<decltype(like)> result;
    for (const Number& number : numbers) result.push_back(value(number));
    return c10::IValue(std::move(result));
  };
  if (kind == TypeKind::BoolType) return list(false, [](const Number& n) { return n.whole != 0; });
  if (kind == TypeKind::FloatType) return list(0.0, [](const Number& n) { return n.real; });
  if (kind == TypeKind::NumberType) {
    c10::List<c10::IValue> result(c10::NumberType::get());
    for (const Number& number : numbers) result.push_back(value_of(number, kind));
    return c10::IValue(std::move(result));
  }
  return list(int64_t{0}, [](const Number& n) { return n.whole; });
}

at::Tensor made_tensor(const TraceInput& input, size_t place, c10::ScalarType dtype, c10::Device device) {
  const auto options = at::TensorOptions(dtype).device(device);
  if (place < input.strides.size()) return at::empty_strided(input.sizes[place], input.strides[place], options);
  return at::empty(input.sizes[place], options);
}

c10::IValue argument_value(const TraceInput& input, const c10::Argument& formal, c10::Device device,
                           c10::ScalarType list_dtype) {
  const c10::TypePtr type = without_optional(formal.type());
  const bool optional = type != formal.type();
  if (input.is_tensor()) return made_tensor(input, 0, *input.dtype, device);
  if (input.is_tensors()) {
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < input.sizes.size(); ++i) tensors.push_back(made_tensor(input, i, list_dtype, device));
    const auto element = type->expectRef<c10::ListType>().getElementType();
    if (element->kind() != TypeKind::OptionalType) return c10::List<at::Tensor>(tensors);
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& tensor : tensors) list.push_back(tensor);
    return list;
  }
  if (!input.text.empty()) {
    if (const auto list = type->cast<c10::ListType>()) {
      if (const auto numbers = numbers_of(input.text)) return list_of(*numbers, list->getElementType()->kind());
    } else if (const auto number = number_of(input.text); number && is_number_type(type->kind())) {
      return value_of(*number, type->kind());
    }
  }
  if (formal.default_value() && input.text.empty() && input.type.empty()) return *formal.default_value();
  if (optional) return {};
  if (type->kind() == TypeKind::TensorType) return at::Tensor();
  if (type->kind() == TypeKind::DeviceObjType) return device;
  if (formal.default_value()) return *formal.default_value();
  throw Error("the trace does not tell its argument " + formal.name());
}

}  // namespace

CallResolver::CallResolver() {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    overloads_[name.name].push_back(name);
  }
  for (auto& [name, overloads] : overloads_) {
    std::ranges::sort(overloads, {}, &c10::OperatorName::overload_name);  // the default one first
  }
}

std::optional<c10::OperatorHandle> CallResolver::find(const TraceOp& op) {
  if (op.name.find("::") == op.name.npos) return std::nullopt;
  std::string key = op.name;
  for (const TraceInput& input : op.inputs) key += ',' + input.type;
  const auto [known, fresh] = found_.try_emplace(std::move(key), std::nullopt);
  if (!fresh) return known->second;
  const size_t dot = std::min(op.name.find('.'), op.name.size());
  const auto overloads = overloads_.find(op.name.substr(0, dot));
  if (overloads == overloads_.end()) return std::nullopt;
  for (const c10::OperatorName& name : overloads->second) {
    if (dot < op.name.size() && name.overload_name != op.name.substr(dot + 1)) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    const auto& formals = handle->schema().arguments();
    bool all = formals.size() == op.inputs.size();
    for (size_t i = 0; all && i < formals.size(); ++i) all = takes_input(op.inputs[i], formals[i]);
    if (!all) continue;
    known->second = *handle;
    break;
  }
  return known->second;
}

torch::jit::Stack CallResolver::arguments(const c10::OperatorHandle& op, const TraceOp& call, c10::Device device,
                                          c10::ScalarType list_dtype) {
  torch::jit::Stack stack;
  const auto& formals = op.schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    stack.push_back(argument_value(call.inputs.at(i), formals[i], device, list_dtype));
  }
  return stack;
}

}  // namespace shadowgraph
