// Passes by name, as the tool runs them.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"

namespace shadowgraph::python {

py::object to_python(const nlohmann::json& json) {
  static auto* const loads = new py::object(py::module_::import("json").attr("loads"));
  return (*loads)(json.dump());
}

void bind_passes(py::module_& m) {
  m.def(
      "passes",
      [] {
        py::dict all;
        for (const Pass* pass : all_passes()) {
          py::dict options;
          for (const PassOption& option : pass->options) {
            options[py::str(option.name)] = py::make_tuple(option.default_value, option.summary);
          }
          all[py::str(pass->name)] = py::make_tuple(pass->summary, options);
        }
        return all;
      },
      "Every pass: name -> (one line, {option: (default, one line)}).");
}

SummaryGrouping grouping_of(const std::string& name) {
  if (name == "module") return SummaryGrouping::kModule;
  if (name == "composite") return SummaryGrouping::kComposite;
  if (name == "operator") return SummaryGrouping::kOperator;
  throw Error("group='" + name + "'; rows are by module, composite or operator");
}

void bind_profile(py::module_& m) {
  struct GraphProfile {
    std::shared_ptr<Graph> graph;
    Profile costs;
  };
  py::class_<GraphProfile, std::shared_ptr<GraphProfile>>(m, "Profile")
      .def(py::init([](std::shared_ptr<Graph> graph, const std::optional<std::string>& device, size_t top_at_peak,
                       bool timeline, std::optional<double> seconds) {
             ProfileOptions options{.top_at_peak = top_at_peak, .timeline = timeline};
             if (device) options.device = c10::Device(*device);
             begin_cost_rules();
             Profile costs = profile(*graph, options);
             end_cost_rules();
             costs.capture_seconds = seconds;
             return std::make_shared<GraphProfile>(GraphProfile{std::move(graph), std::move(costs)});
           }),
           py::arg("graph"), py::arg("device") = std::nullopt, py::arg("top_at_peak") = 10, py::arg("timeline") = false,
           py::arg("capture_seconds") = std::nullopt, py::call_guard<CppCall>())
      .def("dict", [](const GraphProfile& p) { return to_python(to_json(p.costs)); })
      .def("text", [](const GraphProfile& p) { return to_text(p.costs); })
      .def(
          "summary_text",
          [](const GraphProfile& p, const std::string& group, int depth, size_t rows) {
            return to_text(p.costs.summary({.grouping = grouping_of(group), .depth = depth, .max_rows = rows}));
          },
          py::arg("group") = "module", py::arg("depth") = 0, py::arg("rows") = 40)
      .def_property_readonly("peak_bytes", [](const GraphProfile& p) { return p.costs.peak.bytes; })
      .def_property_readonly("graph", [](const GraphProfile& p) { return p.graph; });
}

}  // namespace shadowgraph::python
