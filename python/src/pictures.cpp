// Graph.dot and Graph.svg.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <variant>

#include "python/src/binding.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph::python {
namespace {

// Arguments of Graph.dot and Graph.svg.
using Names = std::variant<std::string, std::vector<std::string>>;
struct PictureRequest {
  std::optional<int> depth;
  std::vector<std::string> phases;
  bool fold_repeats;
  bool views;
  bool parameters;
  Names around;
  int radius;
  std::optional<std::pair<std::string, std::string>> path;
  std::string color;
  std::string spec;
  const Graph* before;
  size_t rows;
  size_t boxes;
};

std::string draw(const Graph& graph, const PictureRequest& request) {
  ViewOptions options;
  options.depth = request.depth;
  options.phases = request.phases;
  options.fold_repeats = request.fold_repeats;
  options.show_views = request.views;
  options.show_parameters = request.parameters;
  options.radius = request.radius;
  options.max_rows = request.rows;
  options.max_boxes = request.boxes;
  options.before = request.before;
  const auto* one = std::get_if<std::string>(&request.around);
  for (const std::string& name :
       one != nullptr ? std::vector{*one} : std::get<std::vector<std::string>>(request.around)) {
    const auto nodes = nodes_named(graph, name);
    options.around.insert(options.around.end(), nodes.begin(), nodes.end());
  }
  if (request.path) {
    options.path = PathEnds{nodes_named(graph, request.path->first), nodes_named(graph, request.path->second)};
  }
  std::optional<NodeColors> colors;
  if (is_color_file(request.color)) {
    colors = node_colors_of_file(graph, request.color);
    options.colors = &*colors;
  } else if (const ColorBy by = color_by(request.color); by != ColorBy::kOperator) {
    const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCPU));
    const auto spec = Machine::find(request.spec, {}, {}, device.type()).device;
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
               bool parameters, Names around, int radius, std::optional<std::pair<std::string, std::string>> path,
               std::string color, std::string spec, const Graph* before, size_t rows, size_t boxes) {
        return finish(draw(g, {depth, std::move(phases), fold_repeats, views, parameters, std::move(around), radius,
                               std::move(path), std::move(color), std::move(spec), before, rows, boxes}));
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
