#include "passes/codegen/cpp_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/replay/functional_call.h"
#include "ir/operator_facts.h"
#include "ir/printer.h"
#include "passes/codegen/codegen.h"
#include "passes/codegen/cpp_operators.h"
#include "passes/codegen/identifiers.h"

namespace shadowgraph {
namespace {

std::string layout_text(int64_t layout) {
  switch (static_cast<c10::Layout>(layout)) {
    case c10::Layout::Strided:
      return "at::kStrided";
    case c10::Layout::Sparse:
      return "at::kSparse";
    case c10::Layout::SparseCsr:
      return "at::kSparseCsr";
    case c10::Layout::Mkldnn:
      return "at::kMkldnn";
    case c10::Layout::SparseCsc:
      return "at::kSparseCsc";
    case c10::Layout::SparseBsr:
      return "at::kSparseBsr";
    case c10::Layout::SparseBsc:
      return "at::kSparseBsc";
    case c10::Layout::Jagged:
      return "at::kJagged";
    default:
      return fmt::format("static_cast<at::Layout>({})", layout);
  }
}

std::string memory_format_text(int64_t format) {
  switch (static_cast<c10::MemoryFormat>(format)) {
    case c10::MemoryFormat::Contiguous:
      return "at::MemoryFormat::Contiguous";
    case c10::MemoryFormat::Preserve:
      return "at::MemoryFormat::Preserve";
    case c10::MemoryFormat::ChannelsLast:
      return "at::MemoryFormat::ChannelsLast";
    case c10::MemoryFormat::ChannelsLast3d:
      return "at::MemoryFormat::ChannelsLast3d";
    default:
      return fmt::format("static_cast<at::MemoryFormat>({})", format);
  }
}

// Where dtype, layout, device and pin_memory follow one another, which C++ has as one at::TensorOptions; or the size.
size_t tensor_options_at(const std::vector<Formal>& formals) {
  for (size_t i = 0; i + 3 < formals.size(); ++i) {
    if (formals[i].name == "dtype" && formals[i + 1].name == "layout" && formals[i + 2].name == "device" &&
        formals[i + 3].name == "pin_memory") {
      return i;
    }
  }
  return formals.size();
}

}  // namespace

std::string CppCalls::dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "at::kByte";
    case at::kChar:
      return "at::kChar";
    case at::kShort:
      return "at::kShort";
    case at::kInt:
      return "at::kInt";
    case at::kLong:
      return "at::kLong";
    case at::kHalf:
      return "at::kHalf";
    case at::kFloat:
      return "at::kFloat";
    case at::kDouble:
      return "at::kDouble";
    case at::kBool:
      return "at::kBool";
    case at::kBFloat16:
      return "at::kBFloat16";
    case at::kComplexFloat:
      return "at::kComplexFloat";
    case at::kComplexDouble:
      return "at::kComplexDouble";
    default:
      return std::string("at::ScalarType::") + c10::toString(dtype);
  }
}

std::string CppCalls::number(int64_t value) {
  if (value == std::numeric_limits<int64_t>::min()) return "std::numeric_limits<int64_t>::min()";
  return std::to_string(value);
}

std::string CppCalls::number(double value) {
  if (std::isnan(value)) {
    const auto bits = std::bit_cast<uint64_t>(value);
    if (bits == 0x7ff8000000000000ULL) return "std::numeric_limits<double>::quiet_NaN()";
    return fmt::format("std::bit_cast<double>(uint64_t{{{:#x}}})", bits);
  }
  if (std::isinf(value)) {
    return value < 0 ? "-std::numeric_limits<double>::infinity()" : "std::numeric_limits<double>::infinity()";
  }
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Octal escapes: a hexadecimal one would go on over the digits that follow it.
std::string CppCalls::quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte >= 0x20 && byte < 0x7f && c != '?') {
      out += c;
    } else {
      out += fmt::format("\\{:03o}", byte);
    }
  }
  return out + '"';
}

std::string CppCalls::ints(std::span<const int64_t> list) {
  std::string text;
  for (const int64_t i : list) text += (text.empty() ? "" : ", ") + number(i);
  return "{" + text + "}";
}

std::string CppCalls::device(c10::Device device) {
  if (options_.device) device = *options_.device;
  if (device == c10::Device(at::kCPU)) return "at::kCPU";
  needs_.devices.insert(device.str());
  std::string name = "k" + device.str();
  name[1] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[1])));
  std::erase(name, ':');
  return name;
}

void CppCalls::fail(NodeId node, const std::string& what) const {
  throw CodegenError("cannot write " + to_text(graph_, node) + "\n  as code: " + what, node);
}

std::string CppCalls::constant(ConstantId id) {
  if (const auto variable = plan_.variable_of_constant(id)) return (*name_of_)(*variable);
  needs_.constants.insert(id.index);
  return constant_name(id) + "()";
}

CppCalls::Call CppCalls::call(uint32_t step, const NameOf& name_of) {
  step_ = step;
  name_of_ = &name_of;
  const NodeId node = plan_.steps[step].node;
  const Target& target = graph_.target(node);
  switch (target.kind()) {
    case TargetKind::kBuiltin:
      if (graph_.node(node).target == target_of(Builtin::kAlias)) return alias(step);
      return {constant(graph_.arguments(node)[0].constant), Returns::kOne};
    case TargetKind::kFunction:
      if (const auto op = operator_of_functional_call(target)) {
        needs_.helpers.insert("functional_call");
        return boxed_call(
            fmt::format("functional_call({}, {}, ", quoted(op->schema().name()), quoted(op->schema().overload_name())),
            target, step);
      }
      fail(node,
           "a function of the user's own has no C++ text; write its body into the graph with inline_call "
           "(ir/group_call.h), or rewrite the node to operators (shadowgraph opt --pass rewrite)");
    case TargetKind::kOperator:
      return operator_call(step, target);
  }
  return {};
}

// A factory that named no device made its tensor on the mode's default one: here that is what the result says.
std::vector<Argument> CppCalls::arguments_with_device(NodeId node, const TargetFormals& formals) {
  const auto given = graph_.arguments(node);
  std::vector<Argument> arguments(given.begin(), given.end());
  bool any_tensor = false;
  graph_.for_each_input(node, [&](ValueId) { any_tensor = true; });
  ValueId result;
  graph_.for_each_output(node, [&](ValueId value) {
    if (!result.valid()) result = value;
  });
  if (any_tensor || !result.valid() || graph_.value(result).kind != ValueKind::kTensor) return arguments;
  for (size_t i = 0; i < formals.arguments.size() && i < arguments.size(); ++i) {
    if (formals.arguments[i].type.type == TypeClass::kDevice && arguments[i].kind == ArgumentKind::kNone) {
      arguments[i] = Argument::of_device(graph_.value(result).device());
    }
  }
  return arguments;
}

CppCalls::Call CppCalls::operator_call(uint32_t step, const Target& target) {
  const NodeId node = plan_.steps[step].node;
  const CppOperator* op = find_cpp_operator(target.name());
  const TargetFormals& formals = formals_.of(graph_, graph_.node(node).target);
  const auto& schema = target.schema();
  // The same name with another schema is another operator: it is not what ATen's header declares.
  const auto here = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  if (here && !target.find_operator()) {
    fail(node, "this libtorch has the operator with another schema than " + target.schema_text() +
                   "; capture the graph again with this libtorch");
  }
  if (op == nullptr) {
    if (target.name().find("::") != std::string::npos) {
      needs_.libraries.insert(target.name().substr(0, target.name().find("::")));
    }
    needs_.helpers.insert("call_operator");
    return boxed_call(fmt::format("call_operator({}, {}, ", quoted(schema.name()), quoted(schema.overload_name())),
                      target, step);
  }
  needs_.headers.insert("ATen/ops/" + op->header_name() + ".h");
  const std::vector<Argument> arguments = arguments_with_device(node, formals);
  const size_t options_at = op->form == 'o' ? formals.arguments.size() : tensor_options_at(formals.arguments);

  struct Written {
    std::string text;
    bool is_default = false;
  };
  std::vector<Written> written;
  std::string self;
  // With other overloads of the name, literals say which type they mean.
  const bool typed = op->form != 'o';
  size_t outs = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == options_at) {
      bool none = true;
      for (size_t j = i; j < i + 4; ++j) none &= arguments[j].kind == ArgumentKind::kNone;
      written.push_back({tensor_options({arguments.data() + i, 4}), none});
      i += 3;
      continue;
    }
    const Formal& formal = formals.arguments[i];
    const bool is_default = formal.default_value && formal.default_value->equals(graph_, arguments[i]);
    std::string text = argument(arguments[i], formal.type, &schema.arguments()[i], typed);
    if (op->form == 'm' && formal.name == "self") {
      self = std::move(text);
    } else if (op->form == 'f' && schema.arguments()[i].is_out()) {
      written.insert(written.begin() + static_cast<ptrdiff_t>(outs++), {std::move(text), false});
    } else {
      written.push_back({std::move(text), is_default});
    }
  }
  size_t count = written.size();
  if (op->form != 'o') {
    for (size_t fewer = count; fewer-- > 0 && written[fewer].is_default;) {
      if (fewer < 32 && (op->counts >> fewer & 1U) != 0) count = fewer;
    }
  }
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + written[i].text;
  const Returns returns = schema.returns().empty()       ? Returns::kNothing
                          : schema.returns().size() == 1 ? Returns::kOne
                                                         : Returns::kTuple;
  switch (op->form) {
    case 'f':
      return {fmt::format("at::{}{}({})", op->function(), outs != 0 ? "_out" : "", text), returns};
    case 'm':
      return {fmt::format("{}.{}({})", self, op->function(), text), returns};
    default:
      return {fmt::format("at::_ops::{}::call({})", op->record(), text), returns};
  }
}

CppCalls::Call CppCalls::boxed_call(const std::string& callee, const Target& target, uint32_t step) {
  const NodeId node = plan_.steps[step].node;
  const TargetFormals& formals = formals_.of(graph_, graph_.node(node).target);
  std::string text;
  const std::vector<Argument> arguments = arguments_with_device(node, formals);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
    text += (text.empty() ? "" : ", ") + ivalue(arguments[i], type);
  }
  return {callee + "{" + text + "})", Returns::kStack};
}

CppCalls::Call CppCalls::alias(uint32_t step) {
  const NodeId node = plan_.steps[step].node;
  const ValueId from = graph_.arguments(node)[0].ref.value;
  const ValueId to = graph_.results(node)[0].ref.value;
  const Value& source = graph_.value(from);
  const Value& result = graph_.value(to);
  needs_.helpers.insert("alias_of");
  const int64_t bytes = result.offset * static_cast<int64_t>(c10::elementSize(result.dtype)) -
                        source.offset * static_cast<int64_t>(c10::elementSize(source.dtype));
  return {fmt::format("alias_of({}, {}, {}, {}, {})", value(from, TypeClass::kTensor), dtype(result.dtype),
                      ints(graph_.sizes(to)), ints(graph_.strides(to)), number(bytes)),
          Returns::kOne};
}

// ---- Arguments

std::string CppCalls::value(ValueId id, TypeClass wanted) {
  const uint32_t variable = plan_.variable_of(id, step_);
  std::string name = (*name_of_)(variable);
  const CodeVariable& v = plan_.variables[variable];
  if (v.kind == ValueKind::kTensor) return name;
  const bool is_scalar = v.type == c10::TypeKind::NumberType;
  switch (wanted) {
    case TypeClass::kTensor:
      needs_.helpers.insert("number");
      return "number(" + name + ")";
    case TypeClass::kInt:
      return is_scalar ? name + ".toLong()" : name;
    case TypeClass::kFloat:
      return is_scalar ? name + ".toDouble()" : "static_cast<double>(" + name + ")";
    case TypeClass::kBool:
      return is_scalar ? name + ".toBool()" : name;
    default:
      return name;
  }
}

std::string CppCalls::tensor_options(std::span<const Argument> four) {
  std::string text;
  if (four[0].kind == ArgumentKind::kInt) text += ".dtype(" + dtype(static_cast<c10::ScalarType>(four[0].i)) + ")";
  if (four[1].kind == ArgumentKind::kInt) text += ".layout(" + layout_text(four[1].i) + ")";
  if (four[2].kind == ArgumentKind::kDevice) text += ".device(" + device(four[2].device()) + ")";
  if (four[3].kind == ArgumentKind::kBool) text += fmt::format(".pinned_memory({})", four[3].b);
  return "at::TensorOptions()" + text;
}

std::string CppCalls::argument(const Argument& a, const FormalType& type, const c10::Argument* formal, bool typed) {
  const auto scalar = [&](const std::string& text) {
    if (type.type != TypeClass::kTensor) return text;
    needs_.helpers.insert("number");
    return "number(" + text + ")";
  };
  switch (a.kind) {
    case ArgumentKind::kNone:
      if (type.type == TypeClass::kTensor && !type.optional) return "at::Tensor()";
      return "std::nullopt";
    case ArgumentKind::kValue:
      return value(a.ref.value, type.type);
    case ArgumentKind::kInt:
      switch (type.type) {
        case TypeClass::kDtype:
          return dtype(static_cast<c10::ScalarType>(a.i));
        case TypeClass::kLayout:
          return layout_text(a.i);
        case TypeClass::kMemoryFormat:
          return memory_format_text(a.i);
        case TypeClass::kFloat:
          return number(static_cast<double>(a.i));
        default:
          return scalar(number(a.i));
      }
    case ArgumentKind::kFloat:
      return scalar(number(a.d));
    case ArgumentKind::kBool:
      return type.type == TypeClass::kNumber ? fmt::format("at::Scalar({})", a.b) : scalar(a.b ? "true" : "false");
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(a);
      return scalar(fmt::format("c10::complex<double>({}, {})", number(parts[0]), number(parts[1])));
    }
    case ArgumentKind::kString:
      return quoted(graph_.text(a.string));
    case ArgumentKind::kDevice:
      return device(a.device());
    case ArgumentKind::kConstant:
      return constant(a.constant);
    case ArgumentKind::kGenerator:
      if (type.optional) return "std::nullopt";
      return "at::globalContext().defaultGenerator(" + device(a.device()) + ")";
    case ArgumentKind::kOpaque:
      fail(plan_.steps[step_].node, "its argument is an object that a graph does not hold (" + graph_.text(a.string) +
                                        "); rewrite the node to operators first");
    case ArgumentKind::kIntList:
    case ArgumentKind::kList:
      return list(a, type, formal, typed);
  }
  return {};
}

std::string CppCalls::list(const Argument& a, const FormalType& type, const c10::Argument* formal, bool typed) {
  std::vector<std::string> elements;
  const FormalType element{type.element, type.element_optional};
  if (a.kind == ArgumentKind::kIntList) {
    for (const int64_t i : graph_.ints(a)) elements.push_back(number(i));
  } else {
    for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element, nullptr, true));
  }
  std::string text = fmt::format("{}", fmt::join(elements, ", "));
  const auto as = [&](const std::string& cpp, bool needed) {
    if (elements.empty()) return needed ? cpp + "()" : std::string("{}");
    return needed ? cpp + "({" + text + "})" : "{" + text + "}";
  };
  switch (type.element) {
    case TypeClass::kInt:
      return as("at::IntArrayRef", typed || type.optional);
    case TypeClass::kTensor:
      if (type.element_optional) {
        needs_.headers.insert("ATen/core/List.h");
        return as("c10::List<std::optional<at::Tensor>>", true);
      }
      return as("at::TensorList", typed || type.optional);
    case TypeClass::kFloat:
      return as("at::ArrayRef<double>", typed || type.optional);
    case TypeClass::kNumber:
      return as("at::ArrayRef<at::Scalar>", typed || type.optional);
    case TypeClass::kBool:
      if (formal != nullptr && formal->N()) return fmt::format("std::array<bool, {}>{{{}}}", *formal->N(), text);
      return as("at::ArrayRef<bool>", typed || type.optional);
    default:
      return as("", false);
  }
}

// For calls through the dispatcher.
std::string CppCalls::ivalue(const Argument& a, const FormalType& type) {
  const FormalType element{type.element, type.element_optional};
  switch (a.kind) {
    case ArgumentKind::kNone:
      return type.type == TypeClass::kTensor && !type.optional ? "at::Tensor()" : "c10::IValue()";
    case ArgumentKind::kGenerator:
      if (type.optional) return "c10::IValue()";
      break;
    case ArgumentKind::kInt:
      if (type.type == TypeClass::kDtype || type.type == TypeClass::kLayout || type.type == TypeClass::kMemoryFormat) {
        return argument(a, type, nullptr, true);
      }
      if (type.type == TypeClass::kTensor || type.type == TypeClass::kFloat) break;
      return fmt::format("int64_t{{{}}}", number(a.i));
    case ArgumentKind::kBool:
      if (type.type != TypeClass::kTensor) return a.b ? "true" : "false";
      break;
    case ArgumentKind::kValue: {
      const CodeVariable& v = plan_.variables[plan_.variable_of(a.ref.value, step_)];
      std::string text = value(a.ref.value, type.type);
      return v.kind != ValueKind::kTensor && v.type == c10::TypeKind::NumberType && text.find('.') == std::string::npos
                 ? "c10::IValue(" + text + ")"
                 : text;
    }
    case ArgumentKind::kIntList: {
      needs_.headers.insert("ATen/core/List.h");
      std::vector<std::string> elements;
      for (const int64_t i : graph_.ints(a)) elements.push_back(number(i));
      return fmt::format("c10::List<int64_t>({{{}}})", fmt::join(elements, ", "));
    }
    case ArgumentKind::kList: {
      needs_.headers.insert("ATen/core/List.h");
      std::vector<std::string> elements;
      for (const Argument& e : graph_.list(a)) {
        if (e.kind == ArgumentKind::kList) {
          fail(plan_.steps[step_].node, "lists in lists have no C++ form here; rewrite the node to operators first");
        }
        elements.push_back(argument(e, element, nullptr, true));
      }
      const char* of = "int64_t";
      switch (type.element) {
        case TypeClass::kTensor:
          of = type.element_optional ? "std::optional<at::Tensor>" : "at::Tensor";
          break;
        case TypeClass::kFloat:
          of = "double";
          break;
        case TypeClass::kBool:
          of = "bool";
          break;
        case TypeClass::kString:
          of = "std::string";
          break;
        case TypeClass::kInt:
        case TypeClass::kDtype:
        case TypeClass::kLayout:
        case TypeClass::kMemoryFormat:
          break;
        default:
          fail(plan_.steps[step_].node, "a list of this type has no C++ form; rewrite the node to operators first");
      }
      return fmt::format("c10::List<{}>({{{}}})", of, fmt::join(elements, ", "));
    }
    default:
      break;
  }
  return argument(a, type, nullptr, true);
}

}  // namespace shadowgraph
