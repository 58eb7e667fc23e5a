// Costs of operators that Python registers: rules called from C++, with the interpreter's lock.
#include <fmt/format.h>
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph::python {

namespace {

struct TensorShape {
  std::vector<int64_t> shape;
  int64_t element_bytes = 0;
  int64_t elements() const { return product_of(shape); }
  int64_t bytes() const { return saturating_multiply(elements(), element_bytes); }
};

struct OperatorCall {
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

// The first rule that failed since begin_cost_rules(): the library takes a rule that throws for one without an answer.
thread_local std::string failure;

// Python objects that live as long as the process: rules of an operator, which a later registration replaces.
struct PythonRules {
  py::object flops, bytes, scratch;
};

PythonRules& rules_of(const std::string& name) {
  static auto* all = new std::map<std::string, PythonRules>;
  return (*all)[name];
}

std::optional<int64_t> ask(const py::object& rule, const std::string& op, const char* kind, const OperandShapes& call) {
  const auto fail = [&](const std::string& what) {
    if (failure.empty()) {
      failure = fmt::format(
          "the {} rule of {} {}; it takes a call (arguments, results) and gives an int of at least 0, or "
          "None if it cannot tell",
          kind, op, what);
    }
    return std::nullopt;
  };
  try {
    OperatorCall seen;
    for (const Operand& argument : call.arguments) seen.arguments.append(operand_object(argument));
    for (const Operand& result : call.results) seen.results.append(operand_object(result));
    const py::object answer = rule(seen);
    if (answer.is_none()) return std::nullopt;
    if (PyIndex_Check(answer.ptr()) == 0) return fail(fmt::format("gave {}", std::string(py::repr(answer))));
    const py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(answer.ptr()));
    if (!index) throw py::error_already_set();
    const long long number = PyLong_AsLongLong(index.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (number < 0) return fail(fmt::format("gave {}", number));
    return number;
  } catch (const py::error_already_set& error) {
    return fail(fmt::format("raised {}", error.what()));
  }
}

void register_cost(const std::string& name, const py::object& flops, const py::object& bytes,
                   const py::object& scratch) {
  PythonRules& rules = rules_of(name);
  const bool known = rules.flops || rules.bytes || rules.scratch;
  OperatorCosts costs;
  const auto add = [&](CostRule& rule, py::object PythonRules::*member, const py::object& given, const char* kind) {
    if (given.is_none()) return;
    if (PyCallable_Check(given.ptr()) == 0) {
      throw Error(fmt::format("register_cost('{}'): {}= is {}, no function of a call", name, kind,
                              std::string(py::repr(given))));
    }
    rule = [name, member, kind](const OperandShapes& call) {
      const py::gil_scoped_acquire gil;
      return ask(rules_of(name).*member, name, kind, call);
    };
  };
  add(costs.flops, &PythonRules::flops, flops, "flops");
  add(costs.bytes, &PythonRules::bytes, bytes, "bytes");
  add(costs.scratch, &PythonRules::scratch, scratch, "scratch");
  if (!costs.flops && !costs.bytes && !costs.scratch) {
    throw Error(fmt::format("register_cost('{}'): give at least one of flops=, bytes=, scratch=", name));
  }
  const auto same = [](const py::object& old, const CostRule& now) { return bool(old) == bool(now); };
  if (!known) {
    register_operator(name, std::move(costs));
  } else if (!same(rules.flops, costs.flops) || !same(rules.bytes, costs.bytes) ||
             !same(rules.scratch, costs.scratch)) {
    throw Error(fmt::format("register_cost('{}') again: give the kinds of rules that were given the first time", name));
  }
  if (!flops.is_none()) rules.flops = flops;
  if (!bytes.is_none()) rules.bytes = bytes;
  if (!scratch.is_none()) rules.scratch = scratch;
}

}  // namespace

void begin_cost_rules() { failure.clear(); }
void end_cost_rules() {
  if (!failure.empty()) throw Error(std::exchange(failure, {}));
}

void bind_costs(py::module_& m) {
  py::class_<TensorShape>(m, "TensorShape", "What a cost rule sees of a tensor.")
      .def_property_readonly(
          "shape", [](const TensorShape& t) { return py::tuple(py::cast(t.shape)); }, "Sizes, in elements.")
      .def_readonly("element_bytes", &TensorShape::element_bytes, "Bytes of one element.")
      .def_property_readonly("elements", &TensorShape::elements, "The product of the sizes.")
      .def_property_readonly("bytes", &TensorShape::bytes, "As many bytes as the elements take without gaps.")
      .def("__repr__", [](const TensorShape& t) {
        return fmt::format("TensorShape({}, element_bytes={})", std::string(py::repr(py::tuple(py::cast(t.shape)))),
                           t.element_bytes);
      });
  py::class_<OperatorCall>(m, "OperatorCall", "What a cost rule sees of one call.")
      .def_readonly("arguments", &OperatorCall::arguments,
                    "By schema position: TensorShape, a list of them, a number, a tuple of integers, None.")
      .def_readonly("results", &OperatorCall::results, "By schema position: TensorShape or a list of them.");
  m.def(
      "register_cost", &register_cost, py::arg("name"), py::kw_only(), py::arg("flops") = py::none(),
      py::arg("bytes") = py::none(), py::arg("scratch") = py::none(),
      "What a call of an operator of your own costs: functions of an OperatorCall that give a count, or None where "
      "they "
      "cannot tell.\n\n"
      "name: \"mylib::op\", or \"mylib::op.out\" for one overload. flops: 2 a multiply-accumulate. bytes: what a call "
      "reads and writes. scratch: bytes that it takes and gives back, in the peak as temporary. Registering again "
      "replaces the rules. Shapes come from torch.library.register_fake, as everywhere.\n\n"
      "Raises Error for a name that is none. A rule that raises makes the profile raise Error.");
}

}  // namespace shadowgraph::python
