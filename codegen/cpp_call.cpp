// Generates the C++ expression of a step, in the most readable form that is unambiguous:
//
//     at::add(x, y), x.relu()                        functions and methods of ATen, without trailing defaults
//     at::_ops::add_Tensor::call(x, y, 1)            if overloads are ambiguous; with all arguments
//     call_operator("mine::op", "", {x, y})          through the dispatcher, if ATen's headers do not declare it
//
// A graph stores dtype, layout and memory format as plain integers, which only the schema distinguishes. Calls by name
// take C++ types; calls through the dispatcher take values that convert to an IValue of the right type.
#include "codegen/cpp_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "codegen/literals.h"
#include "core/calls/functions.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/codegen/codegen.h"

namespace shadowgraph {
namespace {

struct CppOperator {
  std::string_view name;    // "aten::add.Tensor"
  char form = 'o';          // f: at::add(...), m: self.add(...), o: at::_ops::add_Tensor::call(...)
  uint32_t counts = 0;      // bit n: the first n arguments select this overload unambiguously
  std::string_view header;  // in ATen/ops, without .h; "" if equal to the operator's name

  std::string header_name() const {
    if (form == 'o') return (header.empty() ? function() : std::string(header)) + "_ops";
    if (!header.empty()) return std::string(header);
    return std::string(without_underscore(short_name(name)));
  }

  // "add"
  std::string function() const { return std::string(short_name(name)); }

  // "add_Tensor", in at::_ops
  std::string record() const {
    std::string text(without_namespace(name));
    std::replace(text.begin(), text.end(), '.', '_');
    return text;
  }
};

// libtorch's C++ functions, sorted by name. scripts/make_cpp_operators.py generates the table from libtorch's headers.
constexpr CppOperator kOperators[] = {
#include <cpp_operators.inc>
};

// Returns nullptr for operators outside ATen, which are called through the dispatcher.
const CppOperator* find_cpp_operator(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kOperators, name, {}, &CppOperator::name);
  return found != std::end(kOperators) && found->name == name ? found : nullptr;
}

using CppType = std::pair<TypeClass, std::string_view>;

// Returns the position of consecutive dtype, layout, device and pin_memory, which are one at::TensorOptions in C++;
// else the number of arguments.
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

// A number where a tensor is expected becomes a 0-dim tensor, as in Python's dispatch.
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
  // Omitted options are not written: ATen then uses its defaults, as the recorded call did.
  if (four[0].kind == ArgumentKind::kInt) text += ".dtype(" + cpp::dtype(static_cast<c10::ScalarType>(four[0].i)) + ")";
  if (four[1].kind == ArgumentKind::kInt) text += ".layout(" + cpp::layout(four[1].i) + ")";
  if (four[2].kind == ArgumentKind::kDevice) text += ".device(" + device(four[2].device()) + ")";
  if (four[3].kind == ArgumentKind::kBool) text += fmt::format(".pinned_memory({})", four[3].b);
  return "at::TensorOptions()" + text;
}

// `typed`: the parameter accepts any list type (a template, a dispatcher call), so a bare brace list would not compile.
std::string CppCalls::argument(const Argument& a, const FormalType& type, bool typed) {
  const auto scalar = [&](const std::string& text) {
    if (type.type != TypeClass::kTensor) return text;
    needs_.helpers.insert("number");
    return "number(" + text + ")";
  };
  switch (a.kind) {
    case ArgumentKind::kNone:
      // An undefined tensor represents a missing tensor that the schema does not declare optional.
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
      // Without a generator the operator uses the default one, as in the recorded run.
      if (type.optional) return "std::nullopt";
      return "at::globalContext().defaultGenerator(" + device(a.device()) + ")";
    case ArgumentKind::kOpaque:
      refuse_opaque(graph_, plan_.steps[step_].node, a);
    case ArgumentKind::kIntList:
    case ArgumentKind::kList:
      return list(a, type, typed);
  }
  return {};
}

// ATen's signatures have special view types for lists of ints, tensors, floats, numbers and bools.
std::string CppCalls::list(const Argument& a, const FormalType& type, bool typed) {
  std::vector<std::string> elements;
  const FormalType element{type.element, type.element_optional};
  if (a.kind == ArgumentKind::kIntList) {
    for (const int64_t i : graph_.ints(a)) elements.push_back(cpp::number(i));
  } else {
    for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element, true));
  }
  std::string text = fmt::format("{}", fmt::join(elements, ", "));
  // A bare brace list is shorter, but ambiguous with overloads or optionals.
  const auto as = [&](const std::string& cpp, bool needed) {
    if (elements.empty()) return needed ? cpp + "()" : std::string("{}");
    return needed ? cpp + "({" + text + "})" : "{" + text + "}";
  };
  if (type.element == TypeClass::kTensor && type.element_optional) {
    needs_.headers.insert("ATen/core/List.h");
    return as("c10::List<std::optional<at::Tensor>>", true);
  }
  if (type.element == TypeClass::kBool && type.length != 0) {
    return fmt::format("std::array<bool, {}>{{{}}}", type.length, text);
  }
  static constexpr CppType kViews[] = {{TypeClass::kInt, "at::IntArrayRef"},
                                       {TypeClass::kTensor, "at::TensorList"},
                                       {TypeClass::kFloat, "at::ArrayRef<double>"},
                                       {TypeClass::kNumber, "at::ArrayRef<at::Scalar>"},
                                       {TypeClass::kBool, "at::ArrayRef<bool>"}};
  const auto* const row = std::ranges::find(kViews, type.element, &CppType::first);
  return row == std::end(kViews) ? as("", false) : as(std::string(row->second), typed || type.optional);
}

// Writes an argument for a call through the dispatcher, which does not convert it: an int must be an int64_t, and a
// list must have the schema's element type, or the call fails at run time.
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
                      "nested lists are not supported in C++ code; replace the node by other operators first");
        }
        elements.push_back(argument(e, element, true));
      }
      // An IValue keeps the element type, so a list of dtypes must be a list of ints here.
      static constexpr CppType kTypes[] = {{TypeClass::kTensor, "at::Tensor"}, {TypeClass::kFloat, "double"},
                                           {TypeClass::kBool, "bool"},         {TypeClass::kString, "std::string"},
                                           {TypeClass::kInt, "int64_t"},       {TypeClass::kDtype, "int64_t"},
                                           {TypeClass::kLayout, "int64_t"},    {TypeClass::kMemoryFormat, "int64_t"}};
      const auto* const row = std::ranges::find(kTypes, type.element, &CppType::first);
      if (row == std::end(kTypes)) {
        refuse_node(graph_, plan_.steps[step_].node,
                    "a list of this type is not supported in C++ code; replace the node by other operators first");
      }
      const bool optional = type.element == TypeClass::kTensor && type.element_optional;
      const std::string_view of = optional ? "std::optional<at::Tensor>" : row->second;
      return fmt::format("c10::List<{}>({{{}}})", of, fmt::join(elements, ", "));
    }
    default:
      break;
  }
  return argument(a, type, true);
}

std::string CppCalls::device(c10::Device device) {
  // A device chosen for the code replaces all recorded ones.
  if (options_.device) device = *options_.device;
  if (device == c10::Device(at::kCPU)) return "at::kCPU";
  needs_.devices.insert(device.str());
  // One constant per device: "cuda:0" is kCuda0.
  std::string name = "k" + device.str();
  name[1] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[1])));
  std::erase(name, ':');
  return name;
}

std::string CppCalls::constant(ConstantId id) {
  if (const auto variable = plan_.variable_of_constant(id)) return (*name_of_)(*variable);
  needs_.constants.insert(id.index);
  return constant_name(id) + "()";
}

CppCalls::Returns CppCalls::returns_of(const Signature& signature) {
  if (signature.returns.empty()) return Returns::kNothing;
  return signature.returns.size() == 1 ? Returns::kOne : Returns::kTuple;
}

CppCalls::Call CppCalls::call(uint32_t step, const NameOf& name_of) {
  step_ = step;
  name_of_ = &name_of;
  const NodeId node = plan_.steps[step].node;
  const Target& target = graph_.target(node);
  if (target.kind() == TargetKind::kFunction) return function_call(step, target);
  if (target.kind() == TargetKind::kOperator) return operator_call(step, target);
  if (graph_.node(node).target == target_of(Builtin::kAlias)) return alias(step);
  return {constant(graph_.arguments(node)[0].constant), Returns::kOne};
}

// Functions have no kernel in libtorch: the user names a callee, or it is one created by passes.
CppCalls::Call CppCalls::function_call(uint32_t step, const Target& target) {
  const NodeId node = plan_.steps[step].node;
  // A function named by the user comes first, so that it can replace the ones below.
  if (const auto named = options_.functions.find(target.name()); named != options_.functions.end()) {
    if (!named->second.from.empty()) needs_.headers.insert(named->second.from);
    return call_by_schema(named->second.callee, target);
  }
  if (const auto op = operator_of_functional_call(target)) {
    needs_.helpers.insert("functional_call");
    const OperatorFacts& facts = op->facts();
    return boxed_call(fmt::format("functional_call({}, {}, {{{}}}, {{{}}}, ", cpp::quoted(op->signature().name),
                                  cpp::quoted(op->signature().overload), fmt::join(facts.written, ", "),
                                  fmt::join(fresh_results(facts, op->signature().returns.size()), ", ")),
                      target, step);
  }
  for (const auto& [function, helper] : {std::pair(&get_random_state(), "random_state"),
                                         {&exchange_random_state(), "exchange_random_state"},
                                         {&set_random_state(), "exchange_random_state"},
                                         {&seed_generator(), "seed_generator"}}) {
    if (target.name() != function->name()) continue;
    needs_.helpers.insert(helper);
    return call_by_schema(helper, target);
  }
  refuse_node(graph_, node, why_no_function(target));
}

// Calls a C++ function with all parameters of the schema in order, since it may have no defaults.
CppCalls::Call CppCalls::call_by_schema(const std::string& callee, const Target& target) {
  const NodeId node = plan_.steps[step_].node;
  const Signature& formals = graph_.target(node).signature();
  if (formals.variadic_arguments || formals.variadic_returns) {
    refuse_node(graph_, node, "a schema with '...' does not define the arguments of " + callee);
  }
  const auto arguments = graph_.arguments(node);
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    text += (i == 0 ? "" : ", ") + argument(arguments[i], formals.arguments[i].type, true);
  }
  return {callee + "(" + text + ")", returns_of(formals)};
}

CppCalls::Call CppCalls::operator_call(uint32_t step, const Target& target) {
  const NodeId node = plan_.steps[step].node;
  const CppOperator* op = find_cpp_operator(target.name());
  const Signature& formals = graph_.target(node).signature();
  // The same name with another schema is a different operator, which ATen's header does not declare.
  refuse_another_schema(graph_, node);
  // Not declared in ATen's headers, like custom operators: the dispatcher finds it by name at run time.
  if (op == nullptr) {
    if (target.name().find("::") != std::string::npos) {
      needs_.libraries.insert(target.name().substr(0, target.name().find("::")));
    }
    needs_.helpers.insert("call_operator");
    return boxed_call(fmt::format("call_operator({}, {}, ", cpp::quoted(formals.name), cpp::quoted(formals.overload)),
                      target, step);
  }
  needs_.headers.insert("ATen/ops/" + op->header_name() + ".h");
  const std::vector<Argument> arguments = arguments_with_device(graph_, node);
  // at::_ops functions take dtype, layout, device and pin_memory separately, as the schema does.
  const size_t options_at = op->form == 'o' ? formals.arguments.size() : tensor_options_at(formals.arguments);

  struct Written {
    std::string text;
    bool is_default = false;
  };
  std::vector<Written> written;
  std::string self;
  // If the name has other overloads, literals state their type.
  const bool typed = op->form != 'o';
  // ATen's out= functions take the outputs first, schemas last.
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
    std::string text = argument(arguments[i], formal.type, typed);
    if (op->form == 'm' && formal.name == "self") {
      self = std::move(text);
    } else if (op->form == 'f' && formal.out) {
      written.insert(written.begin() + static_cast<ptrdiff_t>(outs++), {std::move(text), false});
    } else {
      written.push_back({std::move(text), is_default});
    }
  }
  // Omits trailing defaults, as far as the remaining arguments select this overload.
  size_t count = written.size();
  if (op->form != 'o') {
    for (size_t fewer = count; fewer-- > 0 && written[fewer].is_default;) {
      if (fewer < 32 && (op->counts >> fewer & 1U) != 0) count = fewer;
    }
  }
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + written[i].text;
  const Returns returns = returns_of(formals);
  if (op->form == 'f') return {fmt::format("at::{}{}({})", op->function(), outs != 0 ? "_out" : "", text), returns};
  if (op->form == 'm') return {fmt::format("{}.{}({})", self, op->function(), text), returns};
  return {fmt::format("at::_ops::{}::call({})", op->record(), text), returns};
}

// Returns the results as a vector of IValues, whatever the schema returns.
CppCalls::Call CppCalls::boxed_call(const std::string& callee, const Target& target, uint32_t step) {
  const NodeId node = plan_.steps[step].node;
  const Signature& formals = graph_.target(node).signature();
  std::string text;
  const std::vector<Argument> arguments = arguments_with_device(graph_, node);
  for (size_t i = 0; i < arguments.size(); ++i) {
    const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
    text += (text.empty() ? "" : ", ") + ivalue(arguments[i], type);
  }
  return {callee + "{" + text + "})", Returns::kStack};
}

CppCalls::Call CppCalls::alias(uint32_t step) {
  const NodeId node = plan_.steps[step].node;
  const ValueId from = graph_.arguments(node)[0].ref.value, to = graph_.results(node)[0].ref.value;
  needs_.helpers.insert("alias_of");
  return {fmt::format("alias_of({}, {}, {}, {}, {})", value(from, TypeClass::kTensor),
                      cpp::dtype(graph_.value(to).dtype), cpp::ints(graph_.sizes(to)), cpp::ints(graph_.strides(to)),
                      cpp::number(bytes_between(graph_, from, to))),
          Returns::kOne};
}

}  // namespace shadowgraph
