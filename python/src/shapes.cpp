// Shapes that a graph's values have for other inputs (shadowgraph/passes/shapes.h).
#include "shadowgraph/passes/shapes.h"

#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <array>

#include "python/src/graph_parts.h"

namespace shadowgraph::python {
namespace {

using Extent = std::array<size_t, 4>;

// An edit shows in it: nodes and values are made anew and never in place of others.
Extent extent_of(const Graph& graph) {
  return {graph.node_count(), graph.node_capacity(), graph.value_capacity(), graph.storage_count()};
}

struct PyShapes {
  GraphPointer graph;
  ShapePropagation shapes;
  Extent extent;

  bool apply() {
    if (extent != extent_of(*graph)) throw Error("the graph was edited since it was propagated; propagate it again");
    const bool changed = shapes.apply(*graph);
    extent = extent_of(*graph);
    return changed;
  }

  py::object tensor(const PyValue& value) const {
    if (value.graph != graph) throw Error("the value is of another graph than the one that was propagated");
    const at::Tensor& tensor = shapes.tensor(value.id);
    return tensor.defined() ? py::cast(tensor) : py::none();
  }
  py::object made(const Argument& argument) const {
    if (argument.kind == ArgumentKind::kValue) return tensor({graph, argument.ref.value});
    if (argument.kind != ArgumentKind::kList) return py::none();
    py::list list;
    for (const Argument& element : graph->list(argument)) list.append(made(element));
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

// A real tensor stands for its geometry, wherever it is, as in a capture; a fake one, ours or torch's, is somewhere.
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
  py::class_<PyBakedSize>(m, "BakedSize", "A number in an argument that is a recorded size of an input, now another.")
      .def_readonly("node", &PyBakedSize::node)
      .def_property_readonly(
          "argument", [](const PyBakedSize& b) { return b.size.argument; }, "\"size[0]\"")
      .def_property_readonly(
          "number", [](const PyBakedSize& b) { return b.size.number; }, "What stands there.")
      .def_property_readonly(
          "dimension", [](const PyBakedSize& b) { return b.size.dimension; },
          "\"size 0 of 'x'\", or a product of such.")
      .def_property_readonly(
          "now", [](const PyBakedSize& b) { return b.size.now; }, "What that dimension is now.")
      .def("__repr__", [](const PyBakedSize& b) {
        return fmt::format("<BakedSize {} = {} of `{}`: {}, now {}>", b.size.argument, b.size.number,
                           to_text(*b.node.graph, b.node.id), b.size.dimension, b.size.now);
      });
  py::class_<PyShapes>(m, "ShapePropagation", "What a graph's values are for other inputs: fake tensors.")
      .def("tensor", &PyShapes::tensor, py::arg("value"), "The fake of a value; None for a number.")
      .def_property_readonly(
          "outputs",
          [](const PyShapes& p) {
            py::tuple outputs;
            for (const NodeId node : p.graph->nodes()) {
              if (p.graph->node(node).target == target_of(Builtin::kOutput))
                outputs = p.made(p.graph->arguments(node)[0]);
            }
            return outputs;
          },
          "The fakes of what the program returns, flat.")
      .def_property_readonly(
          "baked", &baked_in,
          "Recorded sizes that still stand in arguments, in program order; empty if no input changed.")
      .def_property_readonly(
          "paths", [](const PyShapes& p) { return p.shapes.paths(); },
          "Sizes that the program read and that have changed: a capture may take another path.")
      .def("apply", &PyShapes::apply, "Writes the geometry into the graph, unedited since. Whether that changed it.");
  m.def("propagate", &propagate, py::arg("graph"), py::arg("inputs"), py::arg("profile"), py::arg("data_sizes"),
        py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
