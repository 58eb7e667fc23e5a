// Plans of clusters: shadowgraph/parallel/training_plan.h.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/typed_error.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph::python {
namespace {

using Captured = std::function<std::shared_ptr<Graph>(int64_t micro_batch, int64_t layers, std::vector<std::string>)>;

std::shared_ptr<PlanAnswer> plan_cluster(const Captured& capture, int64_t layers, const std::string& name,
                                         int64_t devices, const std::string& spec, const std::string& interconnect,
                                         std::optional<int64_t> memory, int64_t batch, int64_t sequence,
                                         bool captured_state, const std::vector<int64_t>& tensor,
                                         const std::vector<int64_t>& pipeline,
                                         const std::vector<int64_t>& stages_per_rank,
                                         const std::vector<int64_t>& micro_batch, const std::vector<int>& zero,
                                         const std::vector<std::string>& schedules, int simulated) {
  ClusterRequest request{.devices = devices,
                         .device = *DeviceSpec::find(spec, c10::kCUDA),
                         .memory = memory,
                         .batch = batch,
                         .sequence = sequence,
                         .state = captured_state ? TrainingState{} : kMixedPrecision,
                         .tensor = tensor,
                         .pipeline = pipeline,
                         .stages_per_rank = stages_per_rank,
                         .micro_batch = micro_batch,
                         .zero = zero,
                         .schedules = schedules,
                         .simulated = simulated};
  const auto around = Interconnect::around(request.device.name);
  if (interconnect.empty() && !around) {
    throw Error("no links are known around " + request.device.title + ": name some, interconnect=\"pcie5\"");
  }
  request.links = interconnect.empty() ? *around : Interconnect::find(interconnect);
  const StepSource source{
      .capture = [&](const StepSize& size) { return clone(*capture(size.micro_batch, size.layers, size.recomputed)); },
      .layers = layers,
      .name = name};
  begin_cost_rules();
  const auto answer = std::make_shared<PlanAnswer>(plan_training(source, request));
  end_cost_rules();
  return answer;
}

// The run lives in the answer, which it keeps alive.
std::shared_ptr<PipelineRun> run_of(const std::shared_ptr<PlanAnswer>& answer) {
  return {answer, &answer->simulated.front().run};
}

}  // namespace

void bind_plans(py::module_& m) {
  add_error<NoTrainingPlanError>(m, "NoTrainingPlanError",
                                 "No plan fits into the memory of the devices; the message says what would do.");
  py::class_<PlanAnswer, std::shared_ptr<PlanAnswer>>(m, "ClusterPlan", "How a model is trained on a cluster.")
      .def(py::init(&plan_cluster), py::arg("capture"), py::arg("layers"), py::arg("name"), py::arg("devices"),
           py::arg("spec"), py::arg("interconnect"), py::arg("memory"), py::arg("batch"), py::arg("sequence"),
           py::arg("captured_state"), py::arg("tensor"), py::arg("pipeline"), py::arg("stages_per_rank"),
           py::arg("micro_batch"), py::arg("zero"), py::arg("schedules"), py::arg("simulated"),
           py::call_guard<CppCall>())
      .def_property_readonly(
          "seconds", [](const PlanAnswer& answer) { return answer.best().run.seconds(); }, "Of a step, simulated.")
      .def_property_readonly(
          "bytes", [](const PlanAnswer& answer) { return answer.best().bytes(); },
          "Reserved, of the fullest rank, simulated.")
      .def_readonly("bound", &PlanAnswer::bound, "Seconds that no plan of the space is below, by layers' figures.")
      .def_property_readonly("tokens_per_second", &PlanAnswer::tokens_per_second, "Of one device.")
      .def_property_readonly("run", &run_of, "All ranks of one of its pipelines.")
      .def("dict", [](const PlanAnswer& answer) { return to_python(to_json(answer)); })
      .def("__str__", [](const PlanAnswer& answer) { return to_text(answer); });
}

}  // namespace shadowgraph::python
