// Writes a step as a C++ expression, in the most readable form that means this operator and no other.
//
// The forms, from the best:
//
//     at::add(x, y), x.relu()                        functions and methods of ATen, with defaults left out
//     at::_ops::add_Tensor::call(x, y, 1)            where overloads could be confused; every argument is written
//     call_operator("mine::op", "", {x, y})          through the dispatcher, for what ATen's headers do not declare
//
// Constant work for each argument.
#include "passes/codegen/cpp_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/calls/functional_call.h"
#include "core/calls/random_state.h"
#include "ir/operators/operator_facts.h"
#include "passes/codegen/cpp_literals.h"
#include "passes/codegen/cpp_operators.h"
#include "shadowgraph/codegen/options.h"

namespace shadowgraph {
namespace {

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

std::string CppCalls::device(c10::Device device) {
  // A device chosen for the code takes the place of all that were recorded.
  if (options_.device) device = *options_.device;
  if (device == c10::Device(at::kCPU)) return "at::kCPU";
  needs_.devices.insert(device.str());
  // Names one constant for each device: "cuda:0" is kCuda0.
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
  switch (target.kind()) {
    case TargetKind::kBuiltin:
      if (graph_.node(node).target == target_of(Builtin::kAlias)) return alias(step);
      return {constant(graph_.arguments(node)[0].constant), Returns::kOne};
    case TargetKind::kFunction:
      return function_call(step, target);
    case TargetKind::kOperator:
      return operator_call(step, target);
  }
  return {};
}

// Functions have no kernel in libtorch: the user names a callee, or it is one of those that passes make.
CppCalls::Call CppCalls::function_call(uint32_t step, const Target& target) {
  const NodeId node = plan_.steps[step].node;
  // A function that the user names comes first, so that it can replace the ones known below.
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
  if (target.name() == get_random_state().name()) {
    needs_.helpers.insert("random_state");
    return call_by_schema("random_state", target);
  }
  if (target.name() == exchange_random_state().name() || target.name() == set_random_state().name()) {
    needs_.helpers.insert("exchange_random_state");
    return call_by_schema("exchange_random_state", target);
  }
  refuse_node(graph_, node, why_no_function(target));
}

// Calls a C++ function whose parameters are those of the schema, in order. Nothing is left out: it may have no
// defaults.
CppCalls::Call CppCalls::call_by_schema(const std::string& callee, const Target& target) {
  const NodeId node = plan_.steps[step_].node;
  const Signature& formals = graph_.target(node).signature();
  if (formals.variadic_arguments || formals.variadic_returns) {
    refuse_node(graph_, node, "a schema with '...' does not say how " + callee + " is to be called");
  }
  const auto arguments = graph_.arguments(node);
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    text += (i == 0 ? "" : ", ") + argument(arguments[i], formals.arguments[i].type, true);
  }
  return {callee + "(" + text + ")", returns_of(formals)};
}

// A factory that named no device made its tensor on the mode's default one: here that is what the result says.
std::vector<Argument> CppCalls::arguments_with_device(NodeId node, const Signature& formals) {
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
  const Signature& formals = graph_.target(node).signature();
  // The same name with another schema is another operator: it is not what ATen's header declares.
  if (has_another_schema(target)) {
    refuse_node(graph_, node,
                "this libtorch has the operator with another schema than " + target.schema_text() +
                    "; capture the graph again with this libtorch");
  }
  // ATen's headers do not declare it, as for custom operators: the dispatcher finds it by name at run time.
  if (op == nullptr) {
    if (target.name().find("::") != std::string::npos) {
      needs_.libraries.insert(target.name().substr(0, target.name().find("::")));
    }
    needs_.helpers.insert("call_operator");
    return boxed_call(fmt::format("call_operator({}, {}, ", cpp::quoted(formals.name), cpp::quoted(formals.overload)),
                      target, step);
  }
  needs_.headers.insert("ATen/ops/" + op->header_name() + ".h");
  const std::vector<Argument> arguments = arguments_with_device(node, formals);
  // The form at::_ops takes dtype, layout, device and pin_memory one by one, as the schema does.
  const size_t options_at = op->form == 'o' ? formals.arguments.size() : tensor_options_at(formals.arguments);

  struct Written {
    std::string text;
    bool is_default = false;
  };
  std::vector<Written> written;
  std::string self;
  // With other overloads of the name, literals say which type they mean.
  const bool typed = op->form != 'o';
  // ATen's out= functions take the outputs first, where schemas have them last.
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
  // Leaves out trailing defaults, as far as no other overload could be meant by the arguments that are left.
  size_t count = written.size();
  if (op->form != 'o') {
    for (size_t fewer = count; fewer-- > 0 && written[fewer].is_default;) {
      if (fewer < 32 && (op->counts >> fewer & 1U) != 0) count = fewer;
    }
  }
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + written[i].text;
  const Returns returns = returns_of(formals);
  switch (op->form) {
    case 'f':
      return {fmt::format("at::{}{}({})", op->function(), outs != 0 ? "_out" : "", text), returns};
    case 'm':
      return {fmt::format("{}.{}({})", self, op->function(), text), returns};
    default:
      return {fmt::format("at::_ops::{}::call({})", op->record(), text), returns};
  }
}

// The results come as a vector of IValues, whatever the schema returns.
CppCalls::Call CppCalls::boxed_call(const std::string& callee, const Target& target, uint32_t step) {
  const NodeId node = plan_.steps[step].node;
  const Signature& formals = graph_.target(node).signature();
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
  // The offset is counted in bytes, since source and result may differ in dtype.
  const int64_t bytes = result.offset * static_cast<int64_t>(c10::elementSize(result.dtype)) -
                        source.offset * static_cast<int64_t>(c10::elementSize(source.dtype));
  return {fmt::format("alias_of({}, {}, {}, {}, {})", value(from, TypeClass::kTensor), cpp::dtype(result.dtype),
                      cpp::ints(graph_.sizes(to)), cpp::ints(graph_.strides(to)), cpp::number(bytes)),
          Returns::kOne};
}

}  // namespace shadowgraph
