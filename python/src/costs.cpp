// Operator cost rules defined in Python. C++ calls them with the GIL held.
#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"

namespace shadowgraph::python {

namespace {

struct TensorShape {
  std::vector<int64_t> shape;
  int64_t element_bytes = 0;
  int64_t elements() const { return product_of(shape); }
  int64_t bytes() const { return saturating_multiply(elements(), element_bytes); }
};

struct PyOperandShapes {
  py::list arguments;
  py::list results;
};

py::object operand_object(const Operand& operand) {
  switch (operand.kind) {
    case Operand::Kind::kTensor:
      return py::cast(TensorShape{{operand.shape.begin(), operand.shape.end()}, operand.element_bytes});
    case Operand::Kind::kTensors: {
      py::list tensors;
      for (const Shape shape : operand.tensors)
        tensors.append(py::cast(TensorShape{{shape.begin(), shape.end()}, operand.element_bytes}));
      return tensors;
    }
    case Operand::Kind::kNumber: {
      const auto whole = static_cast<int64_t>(std::abs(operand.number) < 9e15 ? operand.number : 0.5);
      if (static_cast<double>(whole) == operand.number) return py::int_(whole);
      return py::float_(operand.number);
    }
    case Operand::Kind::kInts: {
      py::list numbers;
      for (const int64_t number : operand.shape) numbers.append(number);
      return py::tuple(numbers);
    }
    case Operand::Kind::kAbsent:
    case Operand::Kind::kOther:
      break;
  }
  return py::none();
}

// First error since begin_cost_rules(). Not thrown immediately: the library treats a throwing rule as an unknown cost.
thread_local std::string failure;

constexpr std::array kKinds{"flops", "bytes", "scratch"};
constexpr std::array kRules{&OperatorCosts::flops, &OperatorCosts::bytes, &OperatorCosts::scratch};
// Rules of an operator by kind. Never freed; a later registration replaces them.
using PythonRules = std::array<py::object, kKinds.size()>;

PythonRules& rules_of(const std::string& name) {
  static auto* all = new std::map<std::string, PythonRules>;
  return (*all)[name];
}

std::optional<int64_t> evaluate(const py::object& rule, const std::string& op, const char* kind,
                                const OperandShapes& call) {
  const auto fail = [&](const std::string& what) {
    if (failure.empty()) {
      failure = fmt::format(
          "the {} rule of {} {}; it must take an OperandShapes and return a non-negative int, or None if the cost is "
          "unknown",
          kind, op, what);
    }
    return std::nullopt;
  };
  try {
    PyOperandShapes converted;
    for (const Operand& argument : call.arguments) converted.arguments.append(operand_object(argument));
    for (const Operand& result : call.results) converted.results.append(operand_object(result));
    const py::object cost = rule(converted);
    if (cost.is_none()) return std::nullopt;
    if (PyIndex_Check(cost.ptr()) == 0) return fail(fmt::format("returned {}", std::string(py::repr(cost))));
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(cost.ptr()));
    if (!index) throw py::error_already_set();
    const long long number = PyLong_AsLongLong(index.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (number < 0) return fail(fmt::format("returned {}", number));
    return number;
  } catch (const py::error_already_set& error) {
    return fail(fmt::format("raised {}", error.what()));
  }
}

// The operator may be registered later.
void warn_if_unknown(const std::string& name) {
  const std::vector<c10::OperatorName> all = c10::Dispatcher::singleton().getAllOpNames();
  const auto has_name = [&](const c10::OperatorName& each) { return each.name == name || c10::toString(each) == name; };
  if (std::ranges::any_of(all, has_name)) return;
  const std::string text = fmt::format("register_cost('{}'): no operator has this name yet", name);
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), /*stack_level=*/1) < 0) throw py::error_already_set();
}

void register_python_cost(const std::string& name, const py::object& flops, const py::object& bytes,
                          const py::object& scratch) {
  const std::array given{&flops, &bytes, &scratch};
  PythonRules& rules = rules_of(name);
  OperatorCosts costs;
  std::array<bool, kKinds.size()> before{}, now{};
  for (size_t i = 0; i < kKinds.size(); ++i) {
    before[i] = bool(rules[i]);
    now[i] = !given[i]->is_none();
    if (!now[i]) continue;
    if (PyCallable_Check(given[i]->ptr()) == 0) {
      throw Error(fmt::format("register_cost('{}'): {}= must be a function of an OperandShapes, not {}", name,
                              kKinds[i], std::string(py::repr(*given[i]))));
    }
    costs.*kRules[i] = [name, i](const OperandShapes& call) {
      const py::gil_scoped_acquire gil;
      return evaluate(rules_of(name)[i], name, kKinds[i], call);
    };
  }
  constexpr decltype(now) kNone{};
  if (now == kNone) {
    throw Error(fmt::format("register_cost('{}') requires at least one of flops=, bytes=, scratch=", name));
  }
  if (before == kNone) {
    warn_if_unknown(name);
    register_cost(name, std::move(costs));
  } else if (before != now) {
    throw Error(
        fmt::format("register_cost('{}') was called before with other kinds of rules; pass the same ones", name));
  }
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (now[i]) rules[i] = *given[i];
  }
}

}  // namespace

void begin_cost_rules() { failure.clear(); }
void end_cost_rules() {
  if (!failure.empty()) throw Error(std::exchange(failure, {}));
}

void bind_costs(py::module_& m) {
  py::class_<TensorShape>(m, "TensorShape", "Shape and element size of a tensor, as passed to cost rules.")
      .def_property_readonly(
          "shape", [](const TensorShape& t) { return py::tuple(py::cast(t.shape)); }, "Sizes, in elements.")
      .def_readonly("element_bytes", &TensorShape::element_bytes, "Bytes of one element.")
      .def_property_readonly("elements", &TensorShape::elements, "The product of the sizes.")
      .def_property_readonly("bytes", &TensorShape::bytes, "Bytes of the elements, without gaps.")
      .def("__repr__", [](const TensorShape& t) {
        return fmt::format("TensorShape({}, element_bytes={})", std::string(py::repr(py::tuple(py::cast(t.shape)))),
                           t.element_bytes);
      });
  py::class_<PyOperandShapes>(m, "OperandShapes", "One call of an operator, as passed to cost rules.")
      .def_readonly("arguments", &PyOperandShapes::arguments,
                    "Arguments in schema order: TensorShape, a list of them, a number, a tuple of integers, or None.")
      .def_readonly("results", &PyOperandShapes::results, "Results in schema order: TensorShape or a list of them.");
  m.def("register_cost", &register_python_cost, py::arg("name"), py::kw_only(), py::arg("flops") = py::none(),
        py::arg("bytes") = py::none(), py::arg("scratch") = py::none(),
        "Registers cost rules for a custom operator: functions of an OperandShapes that return a count, or None if "
        "unknown.\n\n"
        "name: \"mylib::op\", or \"mylib::op.out\" for one overload.\n"
        "flops: FLOPs; a multiply-accumulate is 2.\n"
        "bytes: bytes read and written.\n"
        "scratch: temporary memory in bytes, freed at the end of the call.\n\n"
        "Registering again replaces the rules. Register shapes by torch.library.register_fake.\n\n"
        "Raises Error for an invalid name. If a rule raises, the profile raises Error.");
}

}  // namespace shadowgraph::python
