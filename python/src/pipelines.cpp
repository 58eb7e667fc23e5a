// Steps cut into the stages of a pipeline, under a schedule: shadowgraph/plan/pipeline.h.
#include <pybind11/stl.h>

#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"
#include "python/src/profile.h"
#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph::python {
namespace {

using PairRows = std::vector<std::vector<std::string>>;

PairRows rows_of(const PipelineSchedule& schedule) {
  PairRows rows;
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const PipelineAction& action : schedule.of(rank)) row.push_back(to_string(action));
  }
  return rows;
}

std::shared_ptr<PipelineSchedule> named_schedule(const std::string& name, int32_t ranks, int32_t microbatches,
                                                 std::optional<int32_t> stages_per_rank) {
  const PipelineSize size{.ranks = ranks,
                          .stages_per_rank = stages_per_rank.value_or(PipelineSchedule::stages_per_rank(name, 2)),
                          .microbatches = microbatches};
  return std::make_shared<PipelineSchedule>(PipelineSchedule::named(name, size));
}

std::shared_ptr<PipelineRun> run_pipeline(const Graph& step, const PipelineSchedule& schedule,
                                          const std::vector<std::string>& cuts, const std::string& spec,
                                          const std::string& interconnect, const std::string& allocator,
                                          const py::dict& how) {
  const c10::Device device = step.metadata.device.value_or(c10::Device(c10::kCPU));
  const Machine machine = Machine::find(spec, interconnect, {}, device.type());
  const StageOptions options{.spec = &machine.specs(), .interconnect = machine.links ? &*machine.links : nullptr};
  begin_cost_rules();
  const PipelineStages stages = cuts.empty() ? PipelineStages::balanced(step, schedule.stages(), options)
                                             : PipelineStages::at_modules(step, cuts, options);
  end_cost_rules();
  PipelineRunOptions run{.interconnect = options.interconnect, .allocator = AllocatorSettings::parse(allocator)};
  read_keywords(run, PipelineRunOptions::table(), how);
  return std::make_shared<PipelineRun>(PipelineRun::of(stages, schedule, run));
}

// A graph, and names of what goes in and comes out: "%12" as in the step, or a placeholder's.
using PieceTuple = std::tuple<std::shared_ptr<Graph>, std::vector<std::string>, std::vector<std::string>>;
PieceTuple piece_of(const PipelineRun& run, const Graph& step, int32_t stage, const std::string& work) {
  const std::map<std::string, PipelineWork> works{{"F", PipelineWork::kForward},
                                                  {"B", PipelineWork::kBackward},
                                                  {"I", PipelineWork::kInputGradient},
                                                  {"W", PipelineWork::kWeightGradient}};
  const auto found = works.find(work);
  if (found == works.end()) throw Error("a piece is F, B, I or W, not " + work);
  Subgraph piece = stage_piece(step, run.stages(), stage, found->second);
  const Numbering numbering = Numbering::of(step);
  const auto names = [&](const std::vector<ValueId>& values) {
    std::vector<std::string> all;
    for (const ValueId v : values) {
      const NodeId producer = step.value(v).producer;
      const auto arguments = step.arguments(producer);
      const bool named = step.is_placeholder(producer) && arguments[0].kind == ArgumentKind::kString;
      all.push_back(named ? std::string(step.text(arguments[0].string)) : "%" + std::to_string(numbering.of(v)));
    }
    return all;
  };
  return {std::make_shared<Graph>(std::move(piece.graph)), names(piece.inputs), names(piece.outputs)};
}

using ActionTuple = std::tuple<std::string, double, double, int64_t>;
std::vector<ActionTuple> actions_of(const PipelineRun& run, int32_t rank) {
  if (rank < 0 || rank >= run.ranks()) throw Error("rank " + std::to_string(rank) + " is not in the pipeline");
  std::vector<ActionTuple> actions;
  for (const PipelineActionTime& at : run.actions(rank)) {
    actions.emplace_back(to_string(at.action), at.begin, at.end, at.live);
  }
  return actions;
}

std::shared_ptr<RankGraphsRun> run_ranks(const std::vector<std::shared_ptr<Graph>>& graphs,
                                         const std::vector<std::vector<int64_t>>& ranks, const std::string& spec,
                                         const std::string& interconnect) {
  if (graphs.empty() || graphs.size() != ranks.size())
    throw Error("give as many lists of ranks as graphs, at least one");
  const c10::Device device = graphs.front()->metadata.device.value_or(c10::Device(c10::kCPU));
  const Machine machine = Machine::find(spec, interconnect, {}, device.type());
  std::vector<RankGraph> all;
  for (size_t i = 0; i < graphs.size(); ++i) all.push_back({graphs[i].get(), ranks[i]});
  begin_cost_rules();
  const auto run = std::make_shared<RankGraphsRun>(
      RankGraphsRun::of(all, {.spec = &machine.specs(), .interconnect = machine.links ? &*machine.links : nullptr}));
  end_cost_rules();
  return run;
}

// (engine, file name, text, why there is none, what differs) of each engine.
using EngineTuple = std::tuple<std::string, std::string, std::string, std::string, std::vector<std::string>>;

std::vector<EngineTuple> files_of_engines(const Graph& step, const std::string& plan, int64_t sequence, int64_t batch,
                                          bool float8, bool bfloat16_gradients) {
  std::vector<EngineTuple> files;
  const EngineRequest request{
      .sequence = sequence, .batch = batch, .float8 = float8, .bfloat16_gradients = bfloat16_gradients};
  for (EngineFile& file : engine_files(given_plan(plan, step), step, request)) {
    files.emplace_back(std::move(file.engine), std::move(file.name), std::move(file.text), std::move(file.why_not),
                       std::move(file.differs));
  }
  return files;
}

}  // namespace

void bind_pipelines(py::module_& m) {
  m.def("engine_files", &files_of_engines, py::arg("step"), py::arg("plan"), py::arg("sequence") = 0,
        py::arg("batch") = 0, py::arg("float8") = false, py::arg("bfloat16_gradients") = false,
        py::call_guard<CppCall>(),
        "A plan (JSON, of `shadowgraph plan --json`) in the words of engines: (engine, file name, text, why there is "
        "none, what differs) of each. `step`: of one device and one micro-batch.");
  m.def("_layouts_script", &layouts_script);
  m.def("_pipeline_options", [] { return options_of(PipelineRunOptions::table()); });
  py::class_<PipelineSchedule, std::shared_ptr<PipelineSchedule>>(
      m, "PipelineSchedule", "In which order the ranks of a pipeline work on stages and micro-batches.")
      .def(py::init(&named_schedule), py::arg("name"), py::arg("ranks"), py::arg("microbatches"),
           py::arg("stages_per_rank") = py::none(), py::call_guard<CppCall>(),
           "One of names(). stages_per_rank: of those that leave it open, by default 2.")
      .def_static("names", &PipelineSchedule::names)
      .def_static(
          "from_csv", [](const std::string& text) { return PipelineSchedule::from_csv(text, "CSV"); }, py::arg("text"),
          py::call_guard<CppCall>(), "PyTorch's: a row a rank, a cell an action.")
      .def_static("read", &PipelineSchedule::read_csv_file, py::arg("path"), py::call_guard<CppCall>())
      .def("csv", &PipelineSchedule::to_csv, "As torch.distributed.pipelining reads it.")
      .def("with_transfers", &PipelineSchedule::with_transfers, "With sends and receives, as early as torch has them.")
      .def("with_send_waits", &PipelineSchedule::with_send_waits,
           "With a wait for each send, which torch wants since 2.15 in a CSV with transfers.")
      .def_property_readonly("name", &PipelineSchedule::name)
      .def_property_readonly("ranks", &PipelineSchedule::ranks)
      .def_property_readonly("stages", &PipelineSchedule::stages)
      .def_property_readonly("microbatches", &PipelineSchedule::microbatches)
      .def_property_readonly("rows", &rows_of, "Actions by rank: \"2F0\", \"1B3\", \"0SEND_F1\".");
  py::class_<PipelineRun, std::shared_ptr<PipelineRun>>(m, "PipelineRun",
                                                        "All ranks of a pipeline, in seconds and bytes.")
      .def(py::init(&run_pipeline), py::arg("step"), py::arg("schedule"), py::arg("cuts"), py::arg("spec"),
           py::arg("interconnect"), py::arg("allocator"), py::arg("how"), py::call_guard<CppCall>())
      .def_property_readonly("seconds", &PipelineRun::seconds, "Of a step.")
      .def_property_readonly("bubble", &PipelineRun::bubble, "The share of all ranks' time in which they wait.")
      .def_property_readonly("worst_rank", &PipelineRun::worst_rank, "The one with most memory.")
      .def_property_readonly("schedule", &PipelineRun::schedule)
      .def("actions", &actions_of, py::arg("rank"), py::call_guard<CppCall>(),
           "(action, begin, end, live bytes after it) of one rank; seconds from the beginning.")
      .def(
          "piece", &piece_of, py::arg("step"), py::arg("stage"), py::arg("work"), py::call_guard<CppCall>(),
          "F, B, I or W of a stage as a graph: (graph, names of its inputs, names of its outputs). `step` is the graph "
          "that was cut; what is no placeholder there is called as in its text, \"%12\".")
      .def("dict", [](const PipelineRun& run) { return to_python(to_json(run)); })
      .def(
          "chrome_trace", [](const PipelineRun& run) { return to_chrome_trace(run); },
          "Text for ui.perfetto.dev: all ranks, arrows between them, live bytes.")
      .def(
          "svg",
          [](const PipelineRun& run, const std::string& title, std::optional<int64_t> memory) {
            return pipeline_svg(run, {title, memory});
          },
          py::arg("title") = "", py::arg("memory") = py::none(), "What each rank does when, and its live bytes.")
      .def(
          "html",
          [](const PipelineRun& run, const std::string& title, std::optional<int64_t> memory) {
            return pipeline_html(run, {title, memory});
          },
          py::arg("title") = "", py::arg("memory") = py::none(), "The same with tables, as a page.")
      .def(
          "write_chakra",
          [](const PipelineRun& run, const std::string& folder, const std::string& name, int64_t processes) {
            return write_chakra(run, folder, {.name = name, .processes_per_stage = processes}).files;
          },
          py::arg("folder"), py::arg("name") = "trace", py::arg("processes_per_stage") = 1, py::call_guard<CppCall>(),
          "Execution traces of MLCommons Chakra, a file a process, for network simulators; gives their number.")
      .def("__str__", [](const PipelineRun& run) { return to_text(run); });
  py::class_<RankGraphsRun, std::shared_ptr<RankGraphsRun>>(m, "RanksRun",
                                                            "Captured graphs of many ranks, run against each other.")
      .def(py::init(&run_ranks), py::arg("graphs"), py::arg("ranks"), py::arg("spec") = "",
           py::arg("interconnect") = "", py::call_guard<CppCall>(),
           "ranks: by graph, the rank it was captured as, then those that do the same.")
      .def_property_readonly("seconds", &RankGraphsRun::seconds, "Of a step, from the first kernel to the last.")
      .def("dict", [](const RankGraphsRun& run) { return to_python(to_json(run)); })
      .def(
          "chrome_trace", [](const RankGraphsRun& run) { return to_chrome_trace(run); },
          "Text for ui.perfetto.dev: all ranks that run, arrows between them.")
      .def("__str__", [](const RankGraphsRun& run) { return to_text(run); });
}

}  // namespace shadowgraph::python
