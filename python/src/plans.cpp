// Plans of clusters: shadowgraph/plan/training_plan.h.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph::python {
namespace {

// `sequence`: 0 for the one that inputs have by themselves.
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

std::shared_ptr<PlanQuestions> questions_of(const Captured& capture, int64_t layers, int64_t first_layers,
                                            const std::string& name, bool any_sequence, const std::string& devices,
                                            const std::string& interconnect, int64_t batch, int64_t sequence,
                                            const py::dict& knobs) {
  ClusterRequest request = ClusterRequest::on(devices, interconnect);
  request.batch = batch;
  request.sequence = sequence;
  read_keywords(request, ClusterRequest::table(), knobs);
  return std::make_shared<PlanQuestions>(source_of(capture, layers, first_layers, name, any_sequence, sequence),
                                         request);
}

// What captures ask of cost rules is thrown at the end.
template <class Work>
auto with_cost_rules(Work&& work) {
  begin_cost_rules();
  auto made = std::make_shared<decltype(work())>(work());
  end_cost_rules();
  return made;
}

std::shared_ptr<PlanTable> ask(PlanQuestions& questions, const std::string& what,
                               const std::vector<std::string>& values, const py::dict& how) {
  PlanQuestion question{.about = parse<PlanTopic>(what, "question")};
  question.values = question_values(question.about, values);
  read_keywords(question, PlanQuestion::table(), how);
  return with_cost_rules([&] { return questions.ask(question); });
}

// The run lives in the answer, which it keeps alive.
std::shared_ptr<PipelineRun> run_of(const std::shared_ptr<PlanAnswer>& answer) {
  return {answer, &answer->simulated.front().run};
}

}  // namespace

void bind_plans(py::module_& m) {
  m.def("_plan_options", [] { return options_of(ClusterRequest::table()); });
  m.def("_ask_options", [] { return options_of(PlanQuestion::table()); });
  py::class_<PlanTable, std::shared_ptr<PlanTable>>(m, "PlanTable", "What a question about plans was answered.")
      .def_readonly("findings", &PlanTable::findings, "Sentences: what was asked for.")
      .def("dict", [](const PlanTable& table) { return to_python(to_json(table)); })
      .def("__str__", [](const PlanTable& table) { return to_text(table); });
  py::class_<PlanQuestions, std::shared_ptr<PlanQuestions>>(m, "_PlanQuestions")
      .def(py::init(&questions_of), py::arg("capture"), py::arg("layers"), py::arg("first_layers"), py::arg("name"),
           py::arg("any_sequence"), py::arg("devices"), py::arg("interconnect"), py::arg("batch"), py::arg("sequence"),
           py::arg("knobs"))
      .def(
          "plan", [](PlanQuestions& questions) { return with_cost_rules([&] { return questions.plan(); }); },
          py::call_guard<CppCall>())
      .def("ask", &ask, py::arg("what"), py::arg("values"), py::arg("how"), py::call_guard<CppCall>())
      .def(
          "simulate",
          [](PlanQuestions& questions, const std::string& plan) {
            return with_cost_rules([&] { return questions.simulate(plan); });
          },
          py::arg("plan"), py::call_guard<CppCall>());
  py::class_<SimulatedPlan, std::shared_ptr<SimulatedPlan>>(m, "SimulatedPlan",
                                                            "A plan, run on all ranks of one of its pipelines.")
      .def_property_readonly(
          "seconds", [](const SimulatedPlan& made) { return made.run.seconds(); }, "Of a step.")
      .def_property_readonly("bytes", &SimulatedPlan::bytes, "Reserved, of the fullest rank.")
      .def_property_readonly(
          "on_host", [](const SimulatedPlan& made) { return made.on_host; }, "Bytes, of the rank that has most there.")
      .def_property_readonly(
          "run",
          [](const std::shared_ptr<SimulatedPlan>& made) { return std::shared_ptr<PipelineRun>(made, &made->run); },
          "All ranks of one of its pipelines.")
      .def("dict", [](const SimulatedPlan& made) { return to_python(to_json(made.plan)); })
      .def("__str__", [](const SimulatedPlan& made) { return to_string(made.plan); });
  py::class_<PlanAnswer, std::shared_ptr<PlanAnswer>>(m, "ClusterPlan", "How a model is trained on a cluster.")
      .def_property_readonly(
          "seconds", [](const PlanAnswer& answer) { return answer.best().run.seconds(); }, "Of a step, simulated.")
      .def_property_readonly(
          "bytes", [](const PlanAnswer& answer) { return answer.best().bytes(); },
          "Reserved, of the fullest rank, simulated.")
      .def_readonly("bound", &PlanAnswer::bound, "Seconds that no plan of the space is below, by layers' figures.")
      .def_property_readonly("tokens_per_second", &PlanAnswer::tokens_per_second, "Of one device.")
      .def_property_readonly("run", &run_of, "All ranks of one of its pipelines.")
      .def("html", &plan_html, "A page: this plan beside others, what its ranks do and hold.")
      .def("dict", [](const PlanAnswer& answer) { return to_python(to_json(answer)); })
      .def("__str__", [](const PlanAnswer& answer) { return to_text(answer); });
}

}  // namespace shadowgraph::python
