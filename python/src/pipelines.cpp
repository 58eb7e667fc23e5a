// Pipeline schedules and simulation (shadowgraph/plan/pipeline.h).
#include <pybind11/stl.h>

#include "cli/output.h"
#include "python/src/binding.h"
#include "python/src/cost_rules.h"
#include "python/src/options.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::python {
namespace {

std::vector<std::vector<std::string>> rows_of(const PipelineSchedule& schedule) {
  std::vector<std::vector<std::string>> rows;
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const PipelineAction& action : schedule.of(rank)) row.push_back(to_string(action));
  }
  return rows;
}

PipelineSchedule named_schedule(const std::string& name, int32_t ranks, int32_t microbatches,
                                std::optional<int32_t> stages_per_rank) {
  const PipelineSize size{.ranks = ranks,
                          .stages_per_rank = stages_per_rank.value_or(PipelineSchedule::stages_per_rank(name, 2)),
                          .microbatches = microbatches};
  return PipelineSchedule::named(name, size);
}

PipelineRun run_pipeline(const Graph& step, const PipelineSchedule& schedule, const std::vector<std::string>& cuts,
                         const std::string& spec, const std::string& interconnect, const std::string& allocator,
                         const py::dict& how) {
  const c10::Device device = step.metadata.device.value_or(c10::Device(c10::kCPU));
  const Machine machine = Machine::find(spec, interconnect, {}, device.type());
  const StageOptions options{.spec = &machine.specs(), .interconnect = machine.links ? &*machine.links : nullptr};
  const PipelineStages stages = with_cost_rules([&] {
    return cuts.empty() ? PipelineStages::balanced(step, schedule.stages(), options)
                        : PipelineStages::at_modules(step, cuts, options);
  });
  PipelineRunOptions run{.interconnect = options.interconnect, .allocator = AllocatorSettings::parse(allocator)};
  read_keywords(run, PipelineRunOptions::table(), how);
  return PipelineRun::of(stages, schedule, run);
}

// (graph, input names, output names). A name is that of a placeholder, or of a value in the text of the step, "%12".
using PieceTuple = std::tuple<std::shared_ptr<Graph>, std::vector<std::string>, std::vector<std::string>>;
PieceTuple piece_of(const PipelineRun& run, const Graph& step, int32_t stage, const std::string& work) {
  const std::map<std::string, PipelineWork> works{{"F", PipelineWork::kForward},
                                                  {"B", PipelineWork::kBackward},
                                                  {"I", PipelineWork::kInputGradient},
                                                  {"W", PipelineWork::kWeightGradient}};
  const auto found = works.find(work);
  if (found == works.end()) throw Error("work must be F, B, I or W, not '" + work + "'");
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
  if (rank < 0 || rank >= run.ranks())
    throw Error("rank " + std::to_string(rank) + " is out of range for a pipeline of " + std::to_string(run.ranks()) +
                " ranks");
  std::vector<ActionTuple> actions;
  for (const PipelineActionTime& at : run.actions(rank)) {
    actions.emplace_back(to_string(at.action), at.begin, at.end, at.live);
  }
  return actions;
}

DistributedRun run_ranks(const std::vector<std::shared_ptr<Graph>>& graphs,
                         const std::vector<std::vector<int64_t>>& ranks, const std::string& spec,
                         const std::string& interconnect) {
  if (graphs.empty() || graphs.size() != ranks.size())
    throw Error("graphs and ranks must be non-empty lists of the same length");
  const c10::Device device = graphs.front()->metadata.device.value_or(c10::Device(c10::kCPU));
  const Machine machine = Machine::find(spec, interconnect, {}, device.type());
  std::vector<RankGraph> all;
  for (size_t i = 0; i < graphs.size(); ++i) all.push_back({graphs[i].get(), ranks[i]});
  return with_cost_rules([&] {
    return DistributedRun::of(all,
                              {.spec = &machine.specs(), .interconnect = machine.links ? &*machine.links : nullptr});
  });
}

// (framework, file name, text, reason for no file, differences from the plan)
using EngineTuple = std::tuple<std::string, std::string, std::string, std::string, std::vector<std::string>>;

std::vector<EngineTuple> files_of_engines(const Graph& step, const std::string& plan, int64_t sequence, int64_t batch,
                                          bool float8, bool bfloat16_gradients) {
  std::vector<EngineTuple> files;
  const PlanExportOptions request{
      .sequence = sequence, .batch = batch, .float8 = float8, .bfloat16_gradients = bfloat16_gradients};
  for (PlanExport& file : export_plan(parse_plan(plan, step), step, request)) {
    files.emplace_back(std::move(file.framework), std::move(file.name), std::move(file.text), std::move(file.why_not),
                       std::move(file.differs));
  }
  return files;
}

}  // namespace

void bind_pipelines(py::module_& m) {
  m.def("export_plan", &files_of_engines, py::arg("step"), py::arg("plan"), py::arg("sequence") = 0,
        py::arg("batch") = 0, py::arg("float8") = false, py::arg("bfloat16_gradients") = false,
        py::call_guard<CppCall>(),
        "Exports a plan (JSON of `shadowgraph plan --json`) to the configuration files of all target frameworks: "
        "[(framework, file name, text, reason for no file, differences from the plan)]. `step` is the captured step of "
        "one micro-batch on one device.");
  m.def("_layouts_script", &sharding_script);
  m.def("_pipeline_options", [] { return options_of(PipelineRunOptions::table()); });
  py::class_<PipelineSchedule, std::shared_ptr<PipelineSchedule>>(
      m, "PipelineSchedule", "Order of the actions of each pipeline rank on stages and micro-batches.")
      .def(py::init(&named_schedule), py::arg("name"), py::arg("ranks"), py::arg("microbatches"),
           py::arg("stages_per_rank") = py::none(), py::call_guard<CppCall>(),
           "name: one of names(). stages_per_rank: for schedules that support several, 2 by default.")
      .def_static("names", &PipelineSchedule::names)
      .def_static(
          "from_csv", [](const std::string& text) { return PipelineSchedule::from_csv(text, "CSV"); }, py::arg("text"),
          py::call_guard<CppCall>(), "Parses PyTorch's CSV format: one row per rank, one cell per action.")
      .def_static("read", &PipelineSchedule::read_csv_file, py::arg("path"), py::call_guard<CppCall>())
      .def("csv", &PipelineSchedule::to_csv, "Returns the schedule in the CSV format of torch.distributed.pipelining.")
      .def("with_transfers", &PipelineSchedule::with_transfers,
           "Returns the schedule with sends and receives inserted as early as in torch.")
      .def("with_send_waits", &PipelineSchedule::with_send_waits,
           "Returns the schedule with a wait for each send, required in a CSV with transfers since torch 2.15.")
      .def_property_readonly("name", &PipelineSchedule::name)
      .def_property_readonly("ranks", &PipelineSchedule::ranks)
      .def_property_readonly("stages", &PipelineSchedule::stages)
      .def_property_readonly("microbatches", &PipelineSchedule::microbatches)
      .def_property_readonly("rows", &rows_of, "Actions per rank: \"2F0\", \"1B3\", \"0SEND_F1\".");
  py::class_<PipelineRun, std::shared_ptr<PipelineRun>>(m, "PipelineRun",
                                                        "Simulated time and memory of all ranks of a pipeline.")
      .def(py::init(&run_pipeline), py::arg("step"), py::arg("schedule"), py::arg("cuts"), py::arg("spec"),
           py::arg("interconnect"), py::arg("allocator"), py::arg("how"), py::call_guard<CppCall>())
      .def_property_readonly("seconds", &PipelineRun::seconds, "Time of a step in seconds.")
      .def_property_readonly("bubble", &PipelineRun::bubble, "Fraction of the time of all ranks spent waiting.")
      .def_property_readonly("worst_rank", &PipelineRun::worst_rank, "Rank with the highest peak memory.")
      .def_property_readonly("schedule", &PipelineRun::schedule)
      .def("actions", &actions_of, py::arg("rank"), py::call_guard<CppCall>(),
           "Returns [(action, begin, end, live bytes after it)] of one rank, in seconds since the start of the step.")
      .def("piece", &piece_of, py::arg("step"), py::arg("stage"), py::arg("work"), py::call_guard<CppCall>(),
           "Returns (graph, input names, output names) for the forward (F), backward (B), input gradient (I) or weight "
           "gradient (W) of a stage. `step` is the graph that was split. Values other than its placeholders are named "
           "as in its text, \"%12\".")
      .def("dict", [](const PipelineRun& run) { return to_python(to_json(run)); })
      .def(
          "chrome_trace", [](const PipelineRun& run) { return to_chrome_trace(run); },
          "Returns a trace for ui.perfetto.dev with all ranks, transfers and live bytes.")
      .def(
          "svg",
          [](const PipelineRun& run, const std::string& title, std::optional<int64_t> memory) {
            return pipeline_svg(run, {title, memory});
          },
          py::arg("title") = "", py::arg("memory") = py::none(),
          "Returns a timeline of all ranks with their live bytes.")
      .def(
          "html",
          [](const PipelineRun& run, const std::string& title, std::optional<int64_t> memory) {
            return pipeline_html(run, {title, memory});
          },
          py::arg("title") = "", py::arg("memory") = py::none(), "Returns an HTML page with the timeline and tables.")
      .def(
          "write_chakra",
          [](const PipelineRun& run, const std::string& folder, const std::string& name, int64_t processes) {
            return write_chakra(run, folder, {.name = name, .processes_per_stage = processes}).files;
          },
          py::arg("folder"), py::arg("name") = "trace", py::arg("processes_per_stage") = 1, py::call_guard<CppCall>(),
          "Writes MLCommons Chakra execution traces for network simulators, one file per process. Returns the number "
          "of files.")
      .def("__str__", [](const PipelineRun& run) { return cli::printable(to_text(run)); });
  py::class_<DistributedRun, std::shared_ptr<DistributedRun>>(m, "DistributedRun",
                                                              "Simulation of captured graphs of several ranks.")
      .def(py::init(&run_ranks), py::arg("graphs"), py::arg("ranks"), py::arg("spec") = "",
           py::arg("interconnect") = "", py::call_guard<CppCall>(),
           "ranks: for each graph, the rank it was captured as, followed by identical ranks.")
      .def_property_readonly("seconds", &DistributedRun::seconds,
                             "Time of a step in seconds, from the first kernel to the last.")
      .def("dict", [](const DistributedRun& run) { return to_python(to_json(run)); })
      .def(
          "chrome_trace", [](const DistributedRun& run) { return to_chrome_trace(run); },
          "Returns a trace for ui.perfetto.dev with all simulated ranks and transfers.")
      .def("__str__", [](const DistributedRun& run) { return cli::printable(to_text(run)); });
}

}  // namespace shadowgraph::python
