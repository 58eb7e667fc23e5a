// Sharding (shadowgraph/shard/shard.h).
#include <pybind11/stl.h>

#include "cli/output.h"
#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"

namespace shadowgraph::python {
namespace {

// Plans a copy of the graph; the given one is not modified.
std::shared_ptr<Sharding> plan_copy(const Graph& graph, const std::string& mesh, const std::string& spec,
                                    const std::string& interconnect, const std::string& solution,
                                    const std::string& solution_name, const py::dict& how) {
  ShardingRequest request{.mesh = DeviceMesh::parse(mesh)};
  if (!spec.empty()) request.device = DeviceSpec::find(spec);
  if (!interconnect.empty()) request.links = Interconnect::find(interconnect);
  request.device_advice = "choose one with spec=\"h100\"";
  request.solution = solution;
  request.solution_name = solution_name;
  read_keywords(request, ShardingRequest::table(), how);
  return with_cost_rules([&] { return std::make_shared<Sharding>(shard_step(clone(graph), request)); });
}

// Shares ownership of the plan, which contains the graph.
std::shared_ptr<Graph> graph_of_plan(const std::shared_ptr<Sharding>& planned) { return {planned, &planned->graph}; }

std::shared_ptr<Graph> graph_of_rank(const Sharding& planned, int64_t rank, bool shard_random) {
  return std::make_shared<Graph>(apply(planned.graph, planned.result.plan, rank, {.shard_random = shard_random}).graph);
}

}  // namespace

void bind_sharding(py::module_& m) {
  m.def("_shard_options", [] { return options_of(ShardingRequest::table()); });
  py::class_<Sharding, std::shared_ptr<Sharding>>(m, "Sharding")
      .def(py::init(&plan_copy), py::arg("graph"), py::arg("mesh"), py::arg("spec"), py::arg("interconnect"),
           py::arg("solution"), py::arg("solution_name"), py::arg("how"), py::call_guard<CppCall>())
      .def_property_readonly("graph", &graph_of_plan)
      .def("graph_layouts", [](const Sharding& p) { return to_python(to_json(p.result.plan, p.graph)); })
      .def("dict", [](const Sharding& p) { return to_python(to_json(p)); })
      .def(
          "text", [](const Sharding& p, int rows) { return cli::printable(to_text(p, rows)); }, py::arg("rows"))
      .def("graph_of_rank", &graph_of_rank, py::arg("rank"), py::arg("shard_random"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
