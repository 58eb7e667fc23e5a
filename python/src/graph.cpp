// Graph: text, files, passes and nodes.
#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/graph_parts.h"

namespace shadowgraph::python {
namespace {

void bind_graph_text(py::class_<Graph, GraphPointer>& graph) {
  graph
      .def_static(
          "parse", [](const std::string& text) { return std::make_shared<Graph>(parse(text)); },
          "Reads the text form. Raises ParseError with line and column.", py::arg("text"))
      .def_static(
          "load", [](const std::string& path) { return std::make_shared<Graph>(read_graph_file(path)); },
          "Reads a .sg file. Raises FileError, ParseError.", py::arg("path"))
      .def_static(
          "from_json",
          [](const std::string& text) {
            try {
              return std::make_shared<Graph>(from_json(nlohmann::json::parse(text)));
            } catch (const nlohmann::json::exception& error) {
              throw ParseError(error.what(), 0, 0);
            }
          },
          py::arg("text"))
      .def(
          "text",
          [](const Graph& g, const std::string& preset) { return to_text(g, parse<PrintPreset>(preset, "preset")); },
          "Returns the graph as text: \"canonical\" (lossless), \"short\" (for reading), \"fingerprint\" (structure).",
          py::arg("preset") = "canonical")
      .def(
          "json", [](const Graph& g) { return to_json(g).dump(); }, "Returns the graph as lossless JSON text.")
      .def(
          "save", [](const Graph& g, const std::string& path) { write_graph_file(path, g); },
          "Writes the text form atomically. Raises FileError.", py::arg("path"))
      .def(
          "copy", [](const Graph& g) { return std::make_shared<Graph>(clone(g)); }, "Returns a copy of the graph.");
}

void warn(const std::string& text) {
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), /*stack_level=*/1) < 0) throw py::error_already_set();
}

void bind_graph_passes(py::class_<Graph, GraphPointer>& graph) {
  graph
      .def(
          "verify", [](const Graph& g) { verify(g); }, "Raises GraphError with all violated invariants.")
      .def(
          "difference", [](const Graph& a, const Graph& b) { return first_difference(a, b); },
          "Returns a description of the first difference from another graph, or None if they are equal.",
          py::arg("other"))
      .def(
          "run_passes",
          [](Graph& g, const std::string& pipeline, bool check) {
            const PipelineReport report =
                Pipeline::parse(pipeline).run(g, check ? PipelineOptions::checked() : PipelineOptions());
            for (const PassRun& run : report.runs) {
              for (const std::string& warning : run.result.warnings) warn(run.pass + ": " + warning);
            }
            return to_text(report);
          },
          "Runs a pass pipeline such as \"functionalize,dce{random=drop}\" and returns a report as text. check=True "
          "verifies the graph after each pass. A pass without effect is a UserWarning. Raises PassError, which leaves "
          "the graph unchanged.",
          py::arg("pipeline"), py::arg("check") = false, py::call_guard<CppCall>());
}

void bind_graph_parts(py::class_<Graph, GraphPointer>& graph) {
  graph.def("__len__", &Graph::node_count)
      .def("__iter__",
           [](const GraphPointer& g) {
             return NodeIterator{g, g->first()};
           })
      .def_property_readonly("nodes", [](const GraphPointer& g) { return parts_of(g, g->nodes()); })
      .def(
          "find", [](const GraphPointer& g, const std::string& name) { return parts_of(g, nodes_calling(*g, name)); },
          "Returns the nodes that call an operator: all overloads (\"aten::add\") or one (\"aten::add.Tensor\").",
          py::arg("operator"))
      .def_property_readonly("storages",
                             [](const GraphPointer& g) { return parts_of(g, Numbering::of(*g).storages()); })
      .def_property_readonly("regions", [](const GraphPointer& g) {
        std::vector<PyRegion> regions;
        for (uint32_t i = 0; i < g->region_count(); ++i) regions.push_back({g, RegionId(i)});
        return regions;
      });
}

void bind_graph_metadata(py::class_<Graph, GraphPointer>& graph) {
  graph
      .def_property_readonly(
          "metadata",
          [](const Graph& g) {
            py::typing::Dict<py::str, py::str> lines;
            for (const auto& [key, text] : g.metadata.lines()) lines[text_object(key)] = text_object(text);
            return lines;
          },
          "Metadata of the capture: model, device, mode, ...")
      .def(
          "set_metadata",
          [](Graph& g, const std::string& key, std::string text) { g.metadata.set(key, std::move(text)); },
          py::arg("key"), py::arg("text"))
      .def_property_readonly(
          "guards",
          [](const Graph& g) {
            std::vector<std::string> lines;
            for (const Guard& guard : g.guards) lines.push_back(guard.observed);
            return lines;
          },
          "Observed conditions that the captured control flow depends on.")
      .def("__str__", [](const Graph& g) { return to_text(g, PrintPreset::kShort); })
      .def("__repr__",
           [](const Graph& g) { return "<shadowgraph.Graph of " + std::to_string(g.node_count()) + " nodes>"; });
}

}  // namespace

void bind_graph(py::module_& m) {
  // Declared first, because signatures of the other classes refer to it.
  py::class_<Graph, GraphPointer> graph(m, "Graph", "A captured program: operator calls in program order.");
  bind_parts(m);
  bind_graph_text(graph);
  bind_graph_passes(graph);
  bind_graph_parts(graph);
  bind_graph_metadata(graph);
}

}  // namespace shadowgraph::python
