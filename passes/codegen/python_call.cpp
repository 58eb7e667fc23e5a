// Writes a step as a Python expression: torch.ops.aten.add.Tensor(x, y).
//
// Naming the overload spares overload resolution, which could choose another operator than was recorded. Defaults at
// the end are left out. Constant work for each argument.
#include "passes/codegen/python_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "core/calls/functional_call.h"
#include "core/calls/random_state.h"
#include "ir/operators/operator_facts.h"
#include "ir/text/tensor_bytes.h"
#include "passes/codegen/identifiers.h"
#include "passes/codegen/python_literals.h"
#include "shadowgraph/codegen/options.h"

namespace shadowgraph {
std::string PythonCalls::device(c10::Device device) const {
  // A device chosen for the code takes the place of all that were recorded.
  if (options_.device) device = *options_.device;
  return fmt::format("torch.device(\"{}\")", device.str());
}

// The literal is evaluated where it stands, each time: constants that are large come from the side file instead
// (take_side_constants).
std::string PythonCalls::constant(ConstantId id) const {
  const auto content = tensor_bytes(graph_.constant(id));
  if (!content) {
    throw CodegenError("the contents of the constant c" + std::to_string(id.index) +
                       " cannot be read, so no code can hold them");
  }
  if (content->bytes.empty()) {
    return fmt::format("torch.empty_strided({}, {}, dtype={})", python::ints(content->sizes),
                       python::ints(content->strides), python::dtype(content->dtype));
  }
  std::string elements;
  if (content->dtype == at::kLong) {
    for (size_t i = 0; i + 8 <= content->bytes.size(); i += 8) {
      int64_t value = 0;
      std::memcpy(&value, content->bytes.data() + i, 8);
      elements += (i == 0 ? "" : ", ") + std::to_string(value);
    }
    elements = "torch.tensor([" + elements + "], dtype=torch.int64)";
  } else {
    // Bytes keep NaN payloads and half types exactly; integers alone are more readable as numbers.
    for (const uint8_t byte : content->bytes) elements += fmt::format("{:02x}", byte);
    elements =
        fmt::format("torch.frombuffer(bytearray.fromhex(\"{}\"), dtype={})", elements, python::dtype(content->dtype));
  }
  return fmt::format("{}.as_strided({}, {})", elements, python::ints(content->sizes), python::ints(content->strides));
}

// "torch.ops.aten.add.Tensor".
std::string PythonCalls::operator_text(const Signature& signature) {
  std::string name = signature.name;
  if (const size_t colons = name.find("::"); colons != std::string::npos) {
    const std::string library = name.substr(0, colons);
    // These come with PyTorch; others must be loaded before, and the file says so.
    if (library != "aten" && library != "prim" && library != "prims") libraries_.insert(library);
    name.replace(colons, 2, ".");
  }
  const std::string overload = signature.overload.empty() ? "default" : signature.overload;
  // random_.from is Python's own word.
  if (identifier(overload) == overload + "_value") {
    return fmt::format("getattr(torch.ops.{}, {})", name, python::quoted(overload));
  }
  return "torch.ops." + name + "." + overload;
}

// Another tensor over the storage of a value, with the geometry that the graph has: views that no operator made (.data
// =).
std::string PythonCalls::alias(NodeId node) {
  const ValueId from = graph_.arguments(node)[0].ref.value;
  const ValueId to = graph_.results(node)[0].ref.value;
  const Value& source = graph_.value(from);
  const Value& result = graph_.value(to);
  helpers_.insert("alias_of");
  const int64_t bytes = result.offset * static_cast<int64_t>(c10::elementSize(result.dtype)) -
                        source.offset * static_cast<int64_t>(c10::elementSize(source.dtype));
  return fmt::format("alias_of({}, {}, {}, {}, {})", (*name_of_)(plan_.variable_of(from, step_)),
                     python::dtype(result.dtype), python::ints(graph_.sizes(to)), python::ints(graph_.strides(to)),
                     bytes);
}

// Spells the arguments of a call, without defaults at the end unless all are wanted. Functions of users and functional
// calls take all of them by position, since they have no schema in Python.
PythonCalls::Arguments PythonCalls::arguments_of(NodeId node, bool all_by_position) {
  const Signature& formals = graph_.target(node).signature();
  const auto arguments = graph_.arguments(node);
  bool any_tensor = false;
  graph_.for_each_input(node, [&](ValueId) { any_tensor = true; });
  ValueId first;
  graph_.for_each_output(node, [&](ValueId v) {
    if (!first.valid()) first = v;
  });
  Arguments spelled;
  size_t last = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const FormalType type = i < formals.arguments.size() ? formals.arguments[i].type : FormalType{};
    const bool keyword = i < formals.arguments.size() && formals.arguments[i].keyword_only;
    bool is_default = i < formals.arguments.size() && formals.arguments[i].default_value &&
                      formals.arguments[i].default_value->equals(graph_, arguments[i]);
    std::string text = argument(arguments[i], type);
    // A factory that named no device made its tensor on the mode's default one: here that is what the result says.
    if (type.type == TypeClass::kDevice && arguments[i].kind == ArgumentKind::kNone && !any_tensor && first.valid() &&
        graph_.value(first).kind == ValueKind::kTensor) {
      text = device(graph_.value(first).device());
      is_default = false;
    }
    if (all_by_position || !keyword) {
      spelled.positional.push_back(text);
      if (!is_default || all_by_position) last = spelled.positional.size();
    } else if (!is_default) {
      spelled.keywords.push_back(formals.arguments[i].name + "=" + text);
    }
  }
  spelled.positional.resize(last);
  return spelled;
}

std::string PythonCalls::call(uint32_t step, const NameOf& name_of) {
  step_ = step;
  name_of_ = &name_of;
  const NodeId node = plan_.steps[step].node;
  const Target& target = graph_.target(node);
  switch (target.kind()) {
    case TargetKind::kBuiltin:
      if (graph_.node(node).target == target_of(Builtin::kAlias)) return alias(node);
      return constant(graph_.arguments(node)[0].constant);
    case TargetKind::kFunction:
      return function_call(node, target);
    case TargetKind::kOperator:
      break;
  }
  if (has_another_schema(target)) {
    refuse_node(graph_, node,
                "this libtorch has the operator with another schema than " + target.schema_text() +
                    "; capture the graph again with this libtorch");
  }
  Arguments arguments = arguments_of(node, false);
  arguments.positional.insert(arguments.positional.end(), arguments.keywords.begin(), arguments.keywords.end());
  return fmt::format("{}({})", operator_text(target.signature()), fmt::join(arguments.positional, ", "));
}

// A function that no operator stands for: the user names a callee, or it is one of those that passes make.
std::string PythonCalls::function_call(NodeId node, const Target& target) {
  const std::string arguments = fmt::format("{}", fmt::join(arguments_of(node, true).positional, ", "));
  // A function that the user names comes first, so that it can replace the ones known below.
  if (const auto named = options_.functions.find(target.name()); named != options_.functions.end()) {
    const auto& [callee, module] = named->second;
    if (module.empty()) return callee + "(" + arguments + ")";
    modules_.insert(module);
    return module + "." + callee + "(" + arguments + ")";
  }
  if (const auto op = operator_of_functional_call(target)) {
    helpers_.insert("functional_call");
    const OperatorFacts& facts = op->facts();
    return fmt::format("functional_call({}, [{}], [{}], [{}])", operator_text(op->signature()),
                       fmt::join(facts.written, ", "),
                       fmt::join(fresh_results(facts, op->signature().returns.size()), ", "), arguments);
  }
  const bool gets = target.name() == get_random_state().name();
  if (gets || target.name() == exchange_random_state().name() || target.name() == set_random_state().name()) {
    helpers_.insert("random_state");
    return gets ? "default_generator(" + arguments + ").get_state()" : "exchange_random_state(" + arguments + ")";
  }
  refuse_node(graph_, node, why_no_function(target));
}

std::string PythonCalls::argument(const Argument& a, const FormalType& type) {
  switch (a.kind) {
    case ArgumentKind::kNone:
      return "None";
    case ArgumentKind::kValue:
      return (*name_of_)(plan_.variable_of(a.ref.value, step_));
    case ArgumentKind::kInt:
      switch (type.type) {
        case TypeClass::kDtype:
          return python::dtype(static_cast<c10::ScalarType>(a.i));
        case TypeClass::kLayout:
          return python::layout(a.i);
        case TypeClass::kMemoryFormat:
          return python::memory_format(a.i);
        default:
          return std::to_string(a.i);
      }
    case ArgumentKind::kFloat:
      return python::number(a.d);
    case ArgumentKind::kBool:
      return a.b ? "True" : "False";
    case ArgumentKind::kComplex: {
      const auto parts = graph_.complex_parts(a);
      return fmt::format("complex({}, {})", python::number(parts[0]), python::number(parts[1]));
    }
    case ArgumentKind::kString:
      return python::quoted(graph_.text(a.string));
    case ArgumentKind::kDevice:
      return device(a.device());
    case ArgumentKind::kIntList:
      return python::ints(graph_.ints(a));
    case ArgumentKind::kList: {
      std::vector<std::string> elements;
      const FormalType element{type.element, type.element_optional};
      for (const Argument& e : graph_.list(a)) elements.push_back(argument(e, element));
      return fmt::format("[{}]", fmt::join(elements, ", "));
    }
    case ArgumentKind::kConstant:
      if (const auto variable = plan_.variable_of_constant(a.constant)) return (*name_of_)(*variable);
      return constant(a.constant);
    case ArgumentKind::kGenerator:
      if (type.optional) return "None";
      return a.device().is_cpu()
                 ? "torch.default_generator"
                 : fmt::format("torch.cuda.default_generators[{}]", std::max<int>(a.device().index(), 0));
    case ArgumentKind::kOpaque:
      refuse_node(graph_, plan_.steps[step_].node,
                  "its argument is an object that a graph does not hold (" + graph_.text(a.string) +
                      "); rewrite the node to operators first");
  }
  return {};
}

}  // namespace shadowgraph
