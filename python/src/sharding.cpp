// Sharding (shadowgraph/shard/shard.h).
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"
#include "shadowgraph/shard/shard.h"

namespace shadowgraph::python {
namespace {

// Plans a copy of the graph; the given one is not modified.
std::shared_ptr<PlannedStep> plan_copy(const Graph& graph, const std::string& mesh, const std::string& spec,
                                       const std::string& interconnect, const std::string& answer,
                                       const std::string& answer_name, const py::dict& how) {
  StepRequest request{.mesh = DeviceMesh::parse(mesh)};
  if (!spec.empty()) request.device = DeviceSpec::find(spec);
  if (!interconnect.empty()) request.links = Interconnect::find(interconnect);
  request.device_advice = "choose one with spec=\"h100\"";
  request.answer = answer;
  request.answer_name = answer_name;
  read_keywords(request, StepRequest::table(), how);
  begin_cost_rules();
  const auto planned = std::make_shared<PlannedStep>(plan_step(clone(graph), request));
  end_cost_rules();
  return planned;
}

// Shares ownership of the plan, which contains the graph.
std::shared_ptr<Graph> graph_of_plan(const std::shared_ptr<PlannedStep>& planned) { return {planned, &planned->graph}; }

std::shared_ptr<Graph> graph_of_rank(const PlannedStep& planned, int64_t rank, bool cut_random) {
  return std::make_shared<Graph>(apply(planned.graph, planned.answer.plan, rank, {.random_parts = cut_random}).graph);
}

}  // namespace

void bind_sharding(py::module_& m) {
  m.def("_shard_options", [] { return options_of(StepRequest::table()); });
  py::class_<PlannedStep, std::shared_ptr<PlannedStep>>(m, "Sharding")
      .def(py::init(&plan_copy), py::arg("graph"), py::arg("mesh"), py::arg("spec"), py::arg("interconnect"),
           py::arg("answer"), py::arg("answer_name"), py::arg("how"), py::call_guard<CppCall>())
      .def_property_readonly("graph", &graph_of_plan)
      .def("plan", [](const PlannedStep& p) { return to_python(to_json(p.answer.plan, p.graph)); })
      .def("dict", [](const PlannedStep& p) { return to_python(to_json(p)); })
      .def(
          "text", [](const PlannedStep& p, int rows) { return to_text(p, rows); }, py::arg("rows"))
      .def("graph_of_rank", &graph_of_rank, py::arg("rank"), py::arg("cut_random"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
