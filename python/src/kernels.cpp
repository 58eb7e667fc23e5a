// Compiled kernels for groups of graph nodes, and for single operators in eager mode.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"
#include "python/src/context.h"
#include "python/src/kernel_overrides.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph::python {
namespace {

py::list report_of(const KernelGroups& groups) {
  py::list rows;
  for (const auto& row : groups.report()) {
    rows.append(py::dict(py::arg("operators") = row.operators, py::arg("state") = to_string(row.state),
                         py::arg("problem") = row.problem, py::arg("elements") = row.elements,
                         py::arg("kernel_runs") = row.kernel_runs, py::arg("node_runs") = row.node_runs,
                         py::arg("kernel_us") = static_cast<double>(row.kernel_ns) / 1e3,
                         py::arg("nodes_us") = static_cast<double>(row.nodes_ns) / 1e3));
  }
  return rows;
}

py::list report_of(const CompiledOperators& operators) {
  py::list rows;
  for (const auto& row : operators.report()) {
    rows.append(py::dict(py::arg("operator") = row.op, py::arg("ran") = row.ran, py::arg("compiling") = row.compiling,
                         py::arg("unsupported") = row.unsupported, py::arg("original") = row.original,
                         py::arg("reason") = row.reason));
  }
  return rows;
}

}  // namespace

void bind_kernels(py::module_& m) {
  bind_kernel_overrides(m);
  py::class_<KernelGroups, std::shared_ptr<KernelGroups>>(m, "KernelGroups",
                                                          "Groups of graph nodes that run as compiled kernels.")
      .def("report", [](const KernelGroups& groups) { return report_of(groups); })
      .def("summary", &KernelGroups::summary)
      .def("wait", &KernelGroups::wait, py::call_guard<py::gil_scoped_release>());
  m.def(
      "group_kernels",
      [](const Graph& graph, bool exact, bool measure) {
        return group_kernels(graph, nullptr, {.kernels = {.exact = exact}, .measure = {.enabled = measure}});
      },
      py::arg("graph"), py::arg("exact"), py::arg("measure"), py::call_guard<CppCall>());
  using Compiled = Closing<CompiledOperators>;
  py::class_<Compiled, Cleanup>(
      m, "CompiledOperators",
      "Operators that run compiled kernels until `close()` or the end of a `with` block. See `compile_operators`.")
      .def(
          "report",
          [](const Compiled& compiled) { return compiled.object() ? report_of(*compiled.object()) : py::list(); },
          "Returns call counts per operator: run by a kernel, waiting for one, or unsupported, with the reason.\n\n"
          "`original`: calls that ran the original implementation, for measurement or because it is faster.")
      .def(
          "wait",
          [](const Compiled& compiled) {
            if (compiled.object()) compiled.object()->cache().wait();
          },
          py::call_guard<py::gil_scoped_release>(), "Blocks until all pending kernels are compiled.")
      .def("close", &Compiled::run, "Restores the original implementations.");
  m.def("compilable_operators", &compilable_operators,
        "Returns the names of operators that kernels can be compiled for, with overloads: \"aten::add.Tensor\".");
  m.def("operators_without_kernels", &operators_without_kernels,
        "Returns {operator: reason} for the libtorch operators that kernels cannot be compiled for.");
  m.def(
      "compile_operators",
      [](const std::vector<std::string>& operators, const std::string& device, bool exact, bool measure) {
        return std::make_unique<Compiled>(compile_operators(
            operators, key_of(device), {.kernels = {.exact = exact}, .measure = {.enabled = measure}}));
      },
      py::arg("operators"), py::arg("device"), py::arg("exact"), py::arg("measure"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
