// Layouts for all tensors of a graph, on many devices: shadowgraph/shard/shard.h.
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "shadowgraph/shard/shard.h"

namespace shadowgraph::python {
namespace {

// What Python's arguments say, as the library takes it.
StepRequest step_request(const std::string& mesh, const std::string& spec, const std::string& interconnect,
                         const std::vector<std::pair<std::string, std::string>>& pins, const std::string& solver) {
  StepRequest request{.mesh = DeviceMesh::parse(mesh)};
  if (!spec.empty()) request.device = DeviceSpec::find(spec);
  if (!interconnect.empty()) request.links = Interconnect::find(interconnect);
  for (const auto& [name, layout] : pins) request.pins.push_back({.name = name, .layout = Layout::parse(layout)});
  request.solver = parse<AssignmentSolver>(solver, "solver");
  return request;
}

// Plans a copy of the graph, which stays Python's.
std::shared_ptr<PlannedStep> plan_copy(const Graph& graph, const std::string& mesh, const std::string& spec,
                                       const std::string& interconnect, std::optional<int64_t> memory,
                                       const std::vector<std::pair<std::string, std::string>>& pins, bool unfold,
                                       bool cut_random, bool cut_vocabulary, bool compare,
                                       const std::vector<std::string>& explain, double time_limit, bool recompute,
                                       const std::string& solver, const std::string& highs, const std::string& answer,
                                       const std::string& answer_name, const std::string& by_hand) {
  StepRequest request = step_request(mesh, spec, interconnect, pins, solver);
  request.memory = memory;
  request.unfold = unfold;
  request.cut_random = cut_random;
  request.cut_vocabulary = cut_vocabulary;
  request.recompute = recompute;
  request.time_limit = time_limit;
  request.highs = highs;
  request.compare = compare;
  request.explain = explain;
  request.answer = answer;
  request.answer_name = answer_name;
  request.by_hand = by_hand;
  request.device_advice = "name some: spec=\"h100\"";
  begin_cost_rules();
  const auto planned = std::make_shared<PlannedStep>(plan_step(clone(graph), request));
  end_cost_rules();
  return planned;
}

// The graph lives in the plan, which it keeps alive.
std::shared_ptr<Graph> graph_of_plan(const std::shared_ptr<PlannedStep>& planned) { return {planned, &planned->graph}; }

std::shared_ptr<Graph> graph_of_rank(const PlannedStep& planned, int64_t rank, bool cut_random) {
  return std::make_shared<Graph>(apply(planned.graph, planned.answer.plan, rank, {.random_parts = cut_random}).graph);
}

}  // namespace

void bind_sharding(py::module_& m) {
  py::class_<PlannedStep, std::shared_ptr<PlannedStep>>(m, "Sharding")
      .def(py::init(&plan_copy), py::arg("graph"), py::arg("mesh"), py::arg("spec"), py::arg("interconnect"),
           py::arg("memory"), py::arg("pins"), py::arg("unfold"), py::arg("cut_random"), py::arg("cut_vocabulary"),
           py::arg("compare"), py::arg("explain"), py::arg("time_limit"), py::arg("recompute"), py::arg("solver"),
           py::arg("highs"), py::arg("answer"), py::arg("answer_name"), py::arg("by_hand"), py::call_guard<CppCall>())
      .def_property_readonly("graph", &graph_of_plan)
      .def("plan", [](const PlannedStep& p) { return to_python(to_json(p.answer.plan, p.graph)); })
      .def("dict", [](const PlannedStep& p) { return to_python(to_json(p)); })
      .def(
          "text", [](const PlannedStep& p, int rows) { return to_text(p, rows); }, py::arg("rows"))
      .def("graph_of_rank", &graph_of_rank, py::arg("rank"), py::arg("cut_random"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
