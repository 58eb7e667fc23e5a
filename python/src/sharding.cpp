// Layouts for all tensors of a graph, on many devices: shadowgraph/sharding/shard.h.
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/typed_error.h"
#include "shadowgraph/sharding/shard_and_recompute.h"

namespace shadowgraph::python {
namespace {

// The graph that was planned (a copy whose mean losses are split, perhaps with what is computed again), and what was
// found.
struct Sharding {
  std::shared_ptr<Graph> graph;
  ShardingAnswer answer;
  nlohmann::json figures;
  std::string text;  // of what was tried with recomputing, before the answer's own
};

std::shared_ptr<Sharding> make_sharding(const Graph& graph, const std::string& mesh, const std::string& spec,
                                        const std::string& interconnect, std::optional<int64_t> memory,
                                        const std::vector<std::pair<std::string, std::string>>& pins, bool unfold,
                                        bool cut_random, bool cut_vocabulary, bool compare,
                                        const std::vector<std::string>& explain, double time_limit, bool recompute,
                                        const std::string& solver, const std::string& highs) {
  auto made = std::make_shared<Sharding>();
  made->graph = std::make_shared<Graph>(clone(graph));
  split_mean_losses(*made->graph);
  if (cut_vocabulary) split_log_softmaxes(*made->graph);
  ShardingOptions sharding{.mesh = DeviceMesh::parse(mesh)};
  for (const auto& [name, layout] : pins) sharding.pins.push_back({.name = name, .layout = Layout::parse(layout)});
  if (memory) sharding.memory = *memory;
  sharding.unfold = unfold;
  sharding.cut_random = cut_random;
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCUDA, 0));
  const std::optional<DeviceSpec> figures = DeviceSpec::find(spec, device.type());
  if (!figures) throw Error("no figures are known of " + device.str() + " devices; name some: spec=\"h100\"");
  std::optional<Interconnect> links = Interconnect::around(figures->name);
  if (!interconnect.empty()) links = Interconnect::find(interconnect);
  if (!links) links = Interconnect::named("pcie4");
  sharding.device = &*figures;
  sharding.interconnect = &*links;
  ShardOptions options{.compare = compare, .explain = explain};
  options.solve.time_limit = time_limit;
  options.solve.solver = assignment_solver(solver);
  options.solve.highs = highs;
  if (memory) options.solve.gap = 1e-3;
  begin_cost_rules();
  if (recompute) {
    RecomputedSharding found = shard_and_recompute(*made->graph, sharding, {.shard = options});
    made->figures = to_json(found);
    const std::string all = to_text(found, 0);
    made->text = all.substr(0, all.size() - to_text(found.answer, 0).size());
    *made->graph = std::move(found.graph);
    made->answer = std::move(found.answer);
  } else {
    made->answer = shard(*made->graph, sharding, options);
    made->figures = to_json(made->answer);
  }
  end_cost_rules();
  return made;
}

std::shared_ptr<Graph> graph_of_rank(const Sharding& sharding, int64_t rank, bool cut_random) {
  return std::make_shared<Graph>(
      apply(*sharding.graph, sharding.answer.plan, rank, {.random_parts = cut_random}).graph);
}

}  // namespace

void bind_sharding(py::module_& m) {
  add_error<ShardingError>(m, "ShardingError", "A plan that does not fit its graph; the message names the node.");
  add_error<NoPlanError>(m, "NoPlanError",
                         "No plan keeps within the memory, or the pins contradict each other; the message says what is "
                         "in the way.");
  add_error<SolverMissingError>(m, "SolverMissingError",
                                "HiGHS is asked for and not there; the message says where it was looked for.");
  py::class_<Sharding, std::shared_ptr<Sharding>>(m, "Sharding")
      .def(py::init(&make_sharding), py::arg("graph"), py::arg("mesh"), py::arg("spec"), py::arg("interconnect"),
           py::arg("memory"), py::arg("pins"), py::arg("unfold"), py::arg("cut_random"), py::arg("cut_vocabulary"),
           py::arg("compare"), py::arg("explain"), py::arg("time_limit"), py::arg("recompute"), py::arg("solver"),
           py::arg("highs"), py::call_guard<CppCall>())
      .def_property_readonly("graph", [](const Sharding& s) { return s.graph; })
      .def("plan", [](const Sharding& s) { return to_python(to_json(s.answer.plan, *s.graph)); })
      .def("dict", [](const Sharding& s) { return to_python(s.figures); })
      .def(
          "text", [](const Sharding& s, int rows) { return s.text + to_text(s.answer, rows); }, py::arg("rows"))
      .def("graph_of_rank", &graph_of_rank, py::arg("rank"), py::arg("cut_random"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
