// Shape rules defined in Python: functions on fake tensors that replace kernels (shadowgraph/capture/shape_rules.h).
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"

namespace shadowgraph::python {
namespace {

// Returns true for an argument of this type or optional type.
bool is_of(const c10::Argument& formal, c10::TypeKind kind) {
  const c10::TypePtr& type = formal.real_type();
  if (type->kind() == kind) return true;
  const auto optional = type->cast<c10::OptionalType>();
  return optional && optional->getElementType()->kind() == kind;
}

// The stack stores dtypes, layouts and memory formats as integers.
py::object argument_of(const c10::Argument& formal, const c10::IValue& value) {
  if (value.isNone()) return py::none();
  if (is_of(formal, c10::TypeKind::ScalarTypeType)) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(value.toScalarType())));
  }
  if (is_of(formal, c10::TypeKind::LayoutType)) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
  }
  if (is_of(formal, c10::TypeKind::MemoryFormatType)) return py::cast(value.toMemoryFormat());
  return torch::jit::toPyObject(value);
}

class PythonRule final : public c10::OperatorKernel {
 public:
  explicit PythonRule(py::object function) : function_(function.release()) {}
  ~PythonRule() override {
    if (Py_IsInitialized() == 0) return;  // the registry outlives the interpreter
    const py::gil_scoped_acquire gil;
    function_.dec_ref();
  }
  PythonRule(const PythonRule&) = delete;
  PythonRule& operator=(const PythonRule&) = delete;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const py::gil_scoped_acquire gil;
    const c10::FunctionSchema& schema = op.schema();
    const size_t begin = stack->size() - schema.arguments().size();
    py::list positional;
    py::dict keywords;
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& formal = schema.arguments()[i];
      py::object argument = argument_of(formal, (*stack)[begin + i]);
      if (formal.kwarg_only()) {
        keywords[py::str(formal.name())] = std::move(argument);
      } else {
        positional.append(std::move(argument));
      }
    }
    stack->resize(begin);
    push(op, function_(*py::tuple(positional), **keywords), *stack);
  }

 private:
  static void push(const c10::OperatorHandle& op, const py::object& given, torch::jit::Stack& stack) {
    const auto& returns = op.schema().returns();
    const auto refuse = [&] {
      throw Error("the Python rule of " + toString(op.operator_name()) + " returned " + std::string(py::repr(given)) +
                  ", which does not match the schema " + toString(op.schema()));
    };
    std::vector<py::object> results;
    if (returns.size() == 1) {
      results.push_back(given);
    } else if (returns.empty() && !given.is_none()) {
      refuse();
    } else if (!returns.empty()) {
      if (!py::isinstance<py::tuple>(given) && !py::isinstance<py::list>(given)) refuse();
      for (const py::handle one : given) results.push_back(py::reinterpret_borrow<py::object>(one));
      if (results.size() != returns.size()) refuse();
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].is_none() && returns[i].type()->kind() == c10::TypeKind::TensorType) {
        stack.emplace_back(at::Tensor());
        continue;
      }
      try {
        stack.push_back(torch::jit::toIValue(results[i], returns[i].type()));
      } catch (const py::cast_error&) {
        refuse();
      }
    }
  }

  py::handle function_;
};

// The operator must already be registered.
internal::ShapeRule rule_of(const std::string& name, py::object function) {
  const size_t dot = name.find('.', name.find("::"));
  const auto op = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  if (!op) {
    throw Error(
        "register_rule('" + name +
        "'): unknown operator; include the overload, \"aten::add.Tensor\", and define a custom operator before its "
        "rule");
  }
  if (PyCallable_Check(function.ptr()) == 0) {
    throw Error("register_rule('" + name + "') requires a function, got " + std::string(py::repr(function)));
  }
  internal::ShapeRule rule;
  rule.kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PythonRule>(std::move(function)));
  rule.inferred_schema = std::make_unique<c10::FunctionSchema>(op->schema());
  return rule;
}

}  // namespace

void bind_rules(py::module_& m) {
  m.def(
      "register_rule",
      [](const std::string& name, py::object function, bool composite) {
        internal::ShapeRule rule = rule_of(name, std::move(function));
        if (composite) {
          internal::add_composite_rule(name, std::move(rule));
        } else {
          internal::add_rule(name, std::move(rule));
        }
      },
      py::arg("name"), py::arg("function"), py::arg("composite"));
  m.def("operators_with_rule", &operators_with_rule, "Returns the names of all operators with a shape rule, sorted.");
}

}  // namespace shadowgraph::python
