// Graph.dot and Graph.svg.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <variant>

#include "python/src/binding.h"

namespace shadowgraph::python {
namespace {

using Names = std::variant<std::string, std::vector<std::string>>;

// Draws the graph with some options given by name.
std::string draw(const Graph& graph, ViewOptions options, const Names& around,
                 const std::optional<std::pair<std::string, std::string>>& path, const std::string& color,
                 const std::string& spec_name) {
  const auto* one = std::get_if<std::string>(&around);
  for (const std::string& name : one != nullptr ? std::vector{*one} : std::get<std::vector<std::string>>(around)) {
    const auto nodes = nodes_named(graph, name);
    options.around.insert(options.around.end(), nodes.begin(), nodes.end());
  }
  if (path) options.path = PathEnds{nodes_named(graph, path->first), nodes_named(graph, path->second)};
  std::optional<NodeColors> colors;
  if (is_color_file(color)) {
    colors = node_colors_of_file(graph, color);
    options.colors = &*colors;
  } else if (const ColorBy by = color_by(color); by != ColorBy::kOperator) {
    const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCPU));
    const auto spec = Machine::find(spec_name, {}, {}, device.type()).device;
    ProfileOptions profiling;
    if (spec) profiling.spec = &*spec;
    colors = NodeColors::of(profile(graph, profiling), by);
    options.colors = &*colors;
  }
  return write_dot(ViewModel::of(graph, options));
}

// Defines Graph.dot or Graph.svg.
template <class Class, class F>
void bind_picture(Class& graph_class, const char* name, const char* doc, size_t max_boxes, F&& finish) {
  graph_class.def(
      name,
      [finish](const Graph& g, std::optional<int> depth, std::vector<std::string> phases, bool fold_repeats, bool views,
               bool parameters, const Names& around, int radius,
               const std::optional<std::pair<std::string, std::string>>& path, const std::string& color,
               const std::string& spec, const Graph* before, size_t rows, size_t boxes) {
        ViewOptions options{.depth = depth,
                            .phases = std::move(phases),
                            .fold_repeats = fold_repeats,
                            .show_views = views,
                            .show_parameters = parameters,
                            .max_boxes = boxes,
                            .max_rows = rows,
                            .radius = radius,
                            .before = before};
        return finish(draw(g, std::move(options), around, path, color, spec));
      },
      doc, py::arg("depth") = std::nullopt, py::arg("phases") = std::vector<std::string>(),
      py::arg("fold_repeats") = true, py::arg("views") = false, py::arg("parameters") = false,
      py::arg("around") = std::vector<std::string>(), py::arg("radius") = ViewOptions().radius,
      py::arg("path") = std::nullopt, py::arg("color") = "operator", py::arg("spec") = "",
      py::arg("before") = static_cast<const Graph*>(nullptr), py::arg("rows") = ViewOptions().max_rows,
      py::arg("boxes") = max_boxes);
}

}  // namespace

void bind_pictures(py::module_& m) {
  py::class_<Graph, std::shared_ptr<Graph>> graph(m.attr("Graph"));
  bind_picture(
      graph, "dot",
      "Returns a picture of the graph in Graphviz' DOT language.\n\n"
      "around, radius: show only nodes within `radius` of a node (\"n12\"), value (\"%7\"), module, parameter or "
      "operator.\n"
      "path: show only paths between two of these.\n"
      "color: flops, bytes, allocated, memory, time, device, phase, module, or a .json or .csv file of values by node "
      "(docs/pictures.md).\n"
      "before: an earlier graph; differences from it are marked.\n"
      "rows: maximum height in boxes before further modules are folded; 0 for no limit.\n"
      "boxes: maximum number of boxes before modules and runs are folded; 0 for no limit.",
      ViewOptions().max_boxes, [](std::string dot) { return dot; });
  bind_picture(graph, "svg", "Returns the picture of `dot` as SVG. Requires the Graphviz library.", kMaxSvgBoxes,
               [](const std::string& dot) { return render_svg(dot); });
}

}  // namespace shadowgraph::python
