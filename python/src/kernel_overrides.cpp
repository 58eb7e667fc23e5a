// User-defined operator kernels: a Python callable, or a function of a shared library.
#include "python/src/kernel_overrides.h"

#include <pybind11/stl.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"
#include "python/src/context.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph::python {
namespace {

// Shared ownership of a Python object that may be released on any thread.
std::shared_ptr<const py::object> shared_object(py::object object) {
  return {new py::object(std::move(object)), [](const py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

c10::IValue result_of(const std::string& op, const py::handle& given, const c10::TypePtr& type) {
  try {
    return torch::jit::toIValue(given, type);
  } catch (const py::cast_error&) {
    throw UnsupportedError("the kernel of " + op + " returned " + std::string(py::str(py::type::of(given))) +
                           ", but the operator returns " + type->annotation_str());
  }
}

KernelOverride::Results call_python(const py::object& function, const std::string& name, const c10::OperatorHandle& op,
                                    std::span<const c10::IValue> arguments) {
  const py::gil_scoped_acquire gil;
  py::list positional;
  py::dict keywords;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& formal = op.schema().arguments()[i];
    py::object value = torch::jit::toPyObject(arguments[i]);
    if (formal.kwarg_only()) {
      keywords[formal.name().c_str()] = std::move(value);
    } else {
      positional.append(std::move(value));
    }
  }
  const py::object given = function(*positional, **keywords);
  if (given.ptr() == Py_NotImplemented) return std::nullopt;
  const auto& returns = op.schema().returns();
  std::vector<c10::IValue> results;
  if (returns.size() == 1) {
    results.push_back(result_of(name, given, returns[0].type()));
  } else if (!returns.empty()) {
    const auto all = py::isinstance<py::tuple>(given) ? py::cast<py::tuple>(given) : py::make_tuple(given);
    for (size_t i = 0; i < all.size(); ++i) {
      results.push_back(result_of(name, all[i], returns[std::min(i, returns.size() - 1)].type()));
    }
  }
  return results;
}

}  // namespace

c10::DispatchKey key_of(const std::string& device) {
  return c10::computeDispatchKey(std::nullopt, c10::kStrided, c10::Device(device));
}

void bind_kernel_overrides(py::module_& m) {
  using Active = Closing<ScopedKernelOverride>;
  py::class_<Active, Cleanup>(
      m, "ScopedKernelOverride",
      "A user-defined kernel that is active until `close()` or the end of a `with` block. See `override_kernel`.")
      .def(
          "report",
          [](const Active& active) {
            if (!active.object()) return py::dict();
            const ScopedKernelOverride::Report row = active.object()->report();
            return py::dict(py::arg("operator") = row.op, py::arg("ran") = row.ran, py::arg("declined") = row.declined,
                            py::arg("unchecked") = row.unchecked);
          },
          "Returns call counts: `ran`, `declined`, and of those that ran `unchecked` (data-dependent result shapes).")
      .def("close", &Active::run, "Restores the original implementation.");
  m.def(
      "override_kernel",
      [](const std::string& op, py::object function, const std::string& device) {
        const auto held = shared_object(std::move(function));
        const auto run = [held, op](const c10::OperatorHandle& handle, std::span<const c10::IValue> arguments) {
          return call_python(*held, op, handle, arguments);
        };
        return std::make_unique<Active>(override_kernel({.op = op, .run = run}, key_of(device)));
      },
      py::arg("op"), py::arg("function"), py::arg("device"));
  m.def(
      "override_library_kernel",
      [](const std::string& op, const std::string& library, const std::string& symbol, const std::string& device) {
        return std::make_unique<Active>(override_kernel(library_kernel(op, library, symbol), key_of(device)));
      },
      py::arg("op"), py::arg("library"), py::arg("symbol"), py::arg("device"));
}

}  // namespace shadowgraph::python
