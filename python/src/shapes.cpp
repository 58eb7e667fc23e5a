// Shape propagation (shadowgraph/passes/shapes.h).
#include "shadowgraph/passes/shapes.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>

#include "python/src/graph_parts.h"

namespace shadowgraph::python {
namespace {

using Extent = std::array<size_t, 4>;

// Detects edits: ids of nodes and values are never reused.
Extent extent_of(const Graph& graph) {
  return {graph.node_count(), graph.node_capacity(), graph.value_capacity(), graph.storage_count()};
}

struct PyShapes {
  GraphPointer graph;
  ShapePropagation shapes;
  Extent extent;

  bool apply() {
    if (extent != extent_of(*graph)) throw Error("the graph was edited after propagate(); call propagate() again");
    const bool changed = shapes.apply(*graph);
    extent = extent_of(*graph);
    return changed;
  }

  std::optional<at::Tensor> tensor(const PyValue& value) const {
    if (value.graph != graph) throw Error("the value belongs to another graph than the propagated one");
    const at::Tensor& tensor = shapes.tensor(value.id);
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  }
  py::object fakes_of(const Argument& argument) const {
    if (argument.kind == ArgumentKind::kValue) return py::cast(tensor({graph, argument.ref.value}));
    if (argument.kind != ArgumentKind::kList) return py::none();
    py::list list;
    for (const Argument& element : graph->list(argument)) list.append(fakes_of(element));
    return py::tuple(list);
  }
};

struct PyBakedSize {
  PyNode node;
  BakedSize size;
};

std::vector<PyBakedSize> baked_in(const PyShapes& p) {
  std::vector<PyBakedSize> all;
  for (const BakedSize& size : p.shapes.baked()) all.push_back({{p.graph, size.node}, size});
  return all;
}

// The device of a real tensor is ignored, as in a capture; that of a fake tensor (ours or torch's) is used.
InputGeometry geometry_of(py::handle given) {
  if (py::isinstance<py::str>(given)) return InputGeometry::of_text(given.cast<std::string>());
  const auto tensor = given.cast<at::Tensor>();
  InputGeometry geometry = InputGeometry::of(tensor);
  if (!is_fake(tensor) && !tensor.unsafeGetTensorImpl()->is_python_dispatch()) geometry.device.reset();
  return geometry;
}

PyShapes propagate(const GraphPointer& graph, const py::dict& inputs, const std::string& profile,
                   const std::map<std::string, int64_t>& data_sizes) {
  ShapePropagationOptions options;
  options.profile = device_profile_named(profile);
  options.data_sizes.insert(data_sizes.begin(), data_sizes.end());
  for (const auto& [name, given] : inputs)
    options.inputs.insert_or_assign(name.cast<std::string>(), geometry_of(given));
  return {graph, ShapePropagation::of(*graph, options), extent_of(*graph)};
}

}  // namespace

void bind_shapes(py::module_& m) {
  py::class_<PyBakedSize>(m, "BakedSize",
                          "An integer argument that equals a captured size of an input which has changed.")
      .def_readonly("node", &PyBakedSize::node)
      .def_property_readonly(
          "argument", [](const PyBakedSize& b) { return b.size.argument; }, "\"size[0]\"")
      .def_property_readonly(
          "number", [](const PyBakedSize& b) { return b.size.number; }, "Value of the argument.")
      .def_property_readonly(
          "dimension", [](const PyBakedSize& b) { return b.size.dimension; },
          "\"size 0 of 'x'\", or a product of sizes.")
      .def_property_readonly(
          "now", [](const PyBakedSize& b) { return b.size.now; }, "New value of the dimension.")
      .def("__repr__", [](const PyBakedSize& b) {
        return fmt::format("<BakedSize {} = {} of `{}`: {}, now {}>", b.size.argument, b.size.number,
                           to_text(*b.node.graph, b.node.id), b.size.dimension, b.size.now);
      });
  py::class_<PyShapes>(m, "ShapePropagation", "Fake tensors of all values of a graph for other inputs.")
      .def("tensor", &PyShapes::tensor, py::arg("value"), "Returns the fake tensor of a value; None for a number.")
      .def_property_readonly(
          "outputs",
          [](const PyShapes& p) {
            py::tuple outputs;
            for (const NodeId node : p.graph->nodes()) {
              if (p.graph->node(node).target == target_of(Builtin::kOutput))
                outputs = p.fakes_of(p.graph->arguments(node)[0]);
            }
            return outputs;
          },
          "Fake tensors of the outputs of the program, flattened.")
      .def_property_readonly("baked", &baked_in,
                             "Captured sizes that remain in arguments, in program order; empty if no input changed.")
      .def_property_readonly(
          "paths", [](const PyShapes& p) { return p.shapes.paths(); },
          "Changed sizes that the program read; a new capture may take another path.")
      .def("apply", &PyShapes::apply,
           "Updates the graph, which must not have been edited. Returns True if that changed it.");
  m.def("propagate", &propagate, py::arg("graph"), py::arg("inputs"), py::arg("profile"), py::arg("data_sizes"),
        py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
