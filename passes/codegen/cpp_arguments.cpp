// Writes the arguments of a step as C++ expressions of the types that the schema asks for.
//
// A graph stores dtype, layout and memory format as plain integers; only the schema says which one a number is. Calls
// by name take C++ types; calls through the dispatcher take what an IValue can be made from without losing its type.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "passes/codegen/cpp_call.h"
#include "passes/codegen/cpp_literals.h"
#include "shadowgraph/codegen/options.h"

namespace shadowgraph {

// A number where a tensor is wanted becomes a tensor without dimensions, as Python's dispatch makes one.
std::string CppCalls::value(ValueId id, TypeClass wanted) {
  const uint32_t variable = plan_.variable_of(id, step_);
  std::string name = (*name_of_)(variable);
  const CodeVariable& v = plan_.variables[variable];
  if (v.kind == ValueKind::kTensor) return name;
  const bool is_scalar = v.type == TypeClass::kNumber;
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

// Four arguments of the schema (dtype, layout, device, pin_memory) are one in C++.
std::string CppCalls::tensor_options(std::span<const Argument> four) {
  std::string text;
  // Options that the call left out are not written: ATen then asks its defaults, as the recorded call did.
  if (four[0].kind == ArgumentKind::kInt) text += ".dtype(" + cpp::dtype(static_cast<c10::ScalarType>(four[0].i)) + ")";
  if (four[1].kind == ArgumentKind::kInt) text += ".layout(" + cpp::layout(four[1].i) + ")";
  if (four[2].kind == ArgumentKind::kDevice) text += ".device(" + device(four[2].device()) + ")";
  if (four[3].kind == ArgumentKind::kBool) text += fmt::format(".pinned_memory({})", four[3].b);
  return "at::TensorOptions()" + text;
}

// `typed`: the place takes any list type (a template, a dispatcher call), so a bare brace list would not compile.
std::string CppCalls::argument(const Argument& a, const FormalType& type, bool typed) {
  const auto scalar = [&](const std::string& text) {
    if (type.type != TypeClass::kTensor) return text;
    needs_.helpers.insert("number");
    return "number(" + text + ")";
  };
  switch (a.kind) {
    case ArgumentKind::kNone:
      // An undefined tensor is how C++ leaves out a tensor that the schema does not call optional.
      if (type.type == TypeClass::kTensor && !type.optional) return "at::Tensor()";
      return "std::nullopt";
    case ArgumentKind::kValue:
      return value(a.ref.value, type.type);
    case ArgumentKind::kInt:
      switch (type.type) {
        case TypeClass::kDtype:
          return cpp::dtype(static_cast<c10::ScalarType>(a.i));
        case TypeClass::kLayout:
          return cpp::layout(a.i);
        case TypeClass::kMemoryFormat:
          return cpp::memory_format(a.i);
        case TypeClass::kFloat:
          return cpp::number(static_cast<double>(a.i));
        default:
          return scalar(cpp::number(a.i));
      }
    case ArgumentKind::kFloat:
      return scalar(cpp::number(a.d));
    case ArgumentKind::kBool:
      return type.type == TypeClass::kNumber ? fmt::format("at::Scalar({})", a.b) : scalar(a.b ? "true" : "false");
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(a);
      return scalar(fmt::format("c10::complex<double>({}, {})", cpp::number(parts[0]), cpp::number(parts[1])));
    }
    case ArgumentKind::kString:
      return cpp::quoted(graph_.text(a.string));
    case ArgumentKind::kDevice:
      return device(a.device());
    case ArgumentKind::kConstant:
      return constant(a.constant);
    case ArgumentKind::kGenerator:
      // Without a generator the operator draws from the default one, as in the recorded run.
      if (type.optional) return "std::nullopt";
      return "at::globalContext().defaultGenerator(" + device(a.device()) + ")";
    case ArgumentKind::kOpaque:
      refuse_node(graph_, plan_.steps[step_].node,
                  "its argument is an object that a graph does not hold (" + graph_.text(a.string) +
                      "); rewrite the node to operators first");
    case ArgumentKind::kIntList:
    case ArgumentKind::kList:
      return list(a, type, typed);
  }
  return {};
}

// Lists of ints, tensors, floats, numbers and bools have view types of their own in ATen's signatures.
std::string CppCalls::list(const Argument& a, const FormalType& type, bool typed) {
  std::vector<std::string> elements;
  const FormalType element{type.element, type.element_optional};
  if (a.kind == ArgumentKind::kIntList) {
    for (const int64_t i : graph_.ints(a)) elements.push_back(cpp::number(i));
  } else {
    for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element, true));
  }
  std::string text = fmt::format("{}", fmt::join(elements, ", "));
  // A bare brace list is shorter, but ambiguous where overloads or an optional may take it.
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
      if (type.length != 0) return fmt::format("std::array<bool, {}>{{{}}}", type.length, text);
      return as("at::ArrayRef<bool>", typed || type.optional);
    default:
      return as("", false);
  }
}

// Spells an argument for a call through the dispatcher, where nothing converts it. An int must be an int64_t, and a
// list must have the schema's element type, or the operator raises at run time.
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
        return argument(a, type, true);
      }
      if (type.type == TypeClass::kTensor || type.type == TypeClass::kFloat) break;
      return fmt::format("int64_t{{{}}}", cpp::number(a.i));
    case ArgumentKind::kBool:
      if (type.type != TypeClass::kTensor) return a.b ? "true" : "false";
      break;
    case ArgumentKind::kValue: {
      const CodeVariable& v = plan_.variables[plan_.variable_of(a.ref.value, step_)];
      std::string text = value(a.ref.value, type.type);
      return v.kind != ValueKind::kTensor && v.type == TypeClass::kNumber && text.find('.') == std::string::npos
                 ? "c10::IValue(" + text + ")"
                 : text;
    }
    case ArgumentKind::kIntList: {
      needs_.headers.insert("ATen/core/List.h");
      std::vector<std::string> elements;
      for (const int64_t i : graph_.ints(a)) elements.push_back(cpp::number(i));
      return fmt::format("c10::List<int64_t>({{{}}})", fmt::join(elements, ", "));
    }
    case ArgumentKind::kList: {
      needs_.headers.insert("ATen/core/List.h");
      std::vector<std::string> elements;
      for (const Argument& e : graph_.list(a)) {
        if (e.kind == ArgumentKind::kList) {
          refuse_node(graph_, plan_.steps[step_].node,
                      "lists in lists have no C++ form here; rewrite the node to operators first");
        }
        elements.push_back(argument(e, element, true));
      }
      // An IValue keeps the element type, so a list of dtypes must be one of ints here.
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
          refuse_node(graph_, plan_.steps[step_].node,
                      "a list of this type has no C++ form; rewrite the node to operators first");
      }
      return fmt::format("c10::List<{}>({{{}}})", of, fmt::join(elements, ", "));
    }
    default:
      break;
  }
  return argument(a, type, true);
}

}  // namespace shadowgraph
