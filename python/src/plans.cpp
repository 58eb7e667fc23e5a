// Cluster plans (shadowgraph/plan/training_plan.h).
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "cli/output.h"
#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::python {
namespace {

// `sequence`: tokens per sample, 0 for the default of the inputs.
using Captured = std::function<std::shared_ptr<Graph>(int64_t micro_batch, int64_t layers, int64_t sequence,
                                                      const std::string& attention)>;

StepSource source_of(const Captured& capture, int64_t layers, int64_t first_layers, const std::string& name,
                     bool any_sequence, int64_t sequence) {
  StepSource source{
      .capture =
          [capture, sequence](const StepSize& size) {
            return clone(*capture(size.micro_batch, size.layers, sequence, std::string(to_string(size.attention))));
          },
      .layers = layers,
      .first_layers = first_layers,
      .name = name};
  if (any_sequence) {
    source.with_sequence = [=](int64_t tokens) {
      return source_of(capture, layers, first_layers, name, any_sequence, tokens);
    };
  }
  return source;
}

std::shared_ptr<PlanSweep> questions_of(const Captured& capture, int64_t layers, int64_t first_layers,
                                        const std::string& name, bool any_sequence, const std::string& devices,
                                        const std::string& interconnect, int64_t batch, int64_t sequence,
                                        const py::dict& options) {
  ClusterRequest request = ClusterRequest::on(devices, interconnect);
  request.batch = batch;
  request.sequence = sequence;
  read_keywords(request, ClusterRequest::table(), options);
  return std::make_shared<PlanSweep>(source_of(capture, layers, first_layers, name, any_sequence, sequence), request);
}

// Shares ownership of the answer, which contains the run.
std::shared_ptr<PipelineRun> run_of_best(const std::shared_ptr<ClusterPlan>& answer) {
  return {answer, &answer->simulated.front().run};
}

PlanTable ask(PlanSweep& sweep, const std::string& what, const std::vector<std::string>& values, const py::dict& how) {
  PlanSweepOptions question{.kind = parse<PlanSweepKind>(what, "question")};
  question.values = sweep_values(question.kind, values);
  read_keywords(question, PlanSweepOptions::table(), how);
  return with_cost_rules([&] { return sweep.run(question); });
}

}  // namespace

void bind_plans(py::module_& m) {
  m.def("_plan_options", [] { return options_of(ClusterRequest::table()); });
  m.def("_run_options", [] { return options_of(PlanSweepOptions::table()); });
  py::class_<PlanTable, std::shared_ptr<PlanTable>>(m, "PlanTable", "Plans of a model over the values of one setting.")
      .def_readonly("findings", &PlanTable::findings, "Results as sentences.")
      .def("dict", [](const PlanTable& table) { return to_python(to_json(table)); })
      .def("__str__", [](const PlanTable& table) { return cli::printable(to_text(table)); });
  py::class_<SimulatedPlan, std::shared_ptr<SimulatedPlan>>(m, "SimulatedPlan",
                                                            "A given plan with its simulated time and memory.")
      .def_property_readonly(
          "seconds", [](const SimulatedPlan& plan) { return plan.run.seconds(); }, "Time of a step in seconds.")
      .def_property_readonly("bytes", &SimulatedPlan::bytes, "Highest reserved memory of any rank, in bytes.")
      .def_property_readonly(
          "on_host", [](const SimulatedPlan& plan) { return plan.on_host; },
          "Highest memory offloaded to the CPU of any rank, in bytes.")
      .def_property_readonly(
          "run",
          [](const std::shared_ptr<SimulatedPlan>& plan) { return std::shared_ptr<PipelineRun>(plan, &plan->run); },
          "Simulation of all ranks of one pipeline.")
      .def("dict", [](const SimulatedPlan& plan) { return to_python(to_json(plan.plan)); })
      .def("__str__", [](const SimulatedPlan& plan) { return to_string(plan.plan); });
  py::class_<ClusterPlan, std::shared_ptr<ClusterPlan>>(m, "ClusterPlan", "The fastest plan found for a cluster.")
      .def_property_readonly(
          "seconds", [](const ClusterPlan& answer) { return answer.best().run.seconds(); },
          "Simulated time of a step in seconds.")
      .def_property_readonly(
          "bytes", [](const ClusterPlan& answer) { return answer.best().bytes(); },
          "Highest simulated reserved memory of any rank, in bytes.")
      .def_readonly("bound", &ClusterPlan::bound,
                    "Lower bound in seconds on the step time of all plans in the search space, from layer costs.")
      .def_property_readonly("tokens_per_second", &ClusterPlan::tokens_per_second, "Throughput per device.")
      .def_property_readonly("run", &run_of_best, "Simulation of all ranks of one pipeline.")
      .def("html", &plan_html, "Returns an HTML page that compares plans and shows time and memory of the ranks.")
      .def("dict", [](const ClusterPlan& answer) { return to_python(to_json(answer)); })
      .def("__str__", [](const ClusterPlan& answer) { return cli::printable(to_text(answer)); });
  py::class_<PlanSweep, std::shared_ptr<PlanSweep>>(m, "_PlanSweep")
      .def(py::init(&questions_of), py::arg("capture"), py::arg("layers"), py::arg("first_layers"), py::arg("name"),
           py::arg("any_sequence"), py::arg("devices"), py::arg("interconnect"), py::arg("batch"), py::arg("sequence"),
           py::arg("options"))
      .def(
          "plan", [](PlanSweep& sweep) { return with_cost_rules([&] { return sweep.plan(); }); },
          py::call_guard<CppCall>())
      .def("run", &ask, py::arg("what"), py::arg("values"), py::arg("how"), py::call_guard<CppCall>())
      .def(
          "simulate",
          [](PlanSweep& sweep, const std::string& plan) {
            return with_cost_rules([&] { return sweep.simulate(plan); });
          },
          py::arg("plan"), py::call_guard<CppCall>());
}

}  // namespace shadowgraph::python
