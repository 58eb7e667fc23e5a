// Profiles: costs of a graph as values, tables, pages and files.
#include "python/src/profile.h"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <unordered_map>
#include <variant>

#include "cli/output.h"
#include "python/src/cost_rules.h"

namespace shadowgraph::python {

namespace {

// A number of bytes, or text for MemoryLimit::parse.
MemoryLimit memory_of_python(const std::variant<int64_t, std::string>& memory) {
  if (const auto* bytes = std::get_if<int64_t>(&memory)) return MemoryLimit::of_bytes(*bytes);
  return MemoryLimit::parse(std::get<std::string>(memory));
}

// Host time in seconds for Python and autograd to launch an operator on a GPU. Measured as 18 to 26 us in twelve
// host-bound programs (bench/gpu). Device specs have the host time of C++.
constexpr double kPythonCall = 20e-6;

// Returns the earlier measurements of this machine, and with `measure` also measures the calls of this graph.
MeasuredCalls measured_for(const Graph& graph, c10::Device device, bool measure) {
  MeasuredCalls measured;
  if (device.is_cpu()) measured = MeasuredCalls::read_file(MeasuredCalls::default_file());
  if (measure) {
    measure_calls(graph, measured);
    measured.write_file(MeasuredCalls::default_file());
  }
  return measured;
}

// The device whose memory is reported, as in profile(): that of the capture, or else the one with the most bytes.
c10::Device device_of(const Graph& graph) {
  if (graph.metadata.device) return *graph.metadata.device;
  std::unordered_map<c10::Device, int64_t> bytes;
  c10::Device most = c10::kCPU;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    bytes[storage.device()] += storage.bytes;
    if (bytes[storage.device()] > bytes[most]) most = storage.device();
  }
  return most;
}

int64_t workspace_of_python(const std::variant<int64_t, std::string>& workspace) {
  const int64_t* bytes = std::get_if<int64_t>(&workspace);
  return bytes != nullptr ? *bytes : cublas_workspace(std::get<std::string>(workspace));
}

std::shared_ptr<GraphProfile> profile_of(std::shared_ptr<Graph> graph, const std::optional<std::string>& device,
                                         std::optional<double> seconds, const std::string& spec,
                                         const std::string& allocator,
                                         const std::optional<std::variant<int64_t, std::string>>& device_memory,
                                         bool measure, const std::shared_ptr<Graph>& run,
                                         const std::string& interconnect, const std::string& mesh,
                                         const std::optional<std::variant<int64_t, std::string>>& workspace) {
  ProfileOptions options;
  if (device) options.device = c10::Device(*device);
  const c10::Device where = options.device ? *options.device : device_of(*graph);
  if (device_memory) options.limit = memory_of_python(*device_memory);
  Machine machine = Machine::find(spec, interconnect, options.limit, where.type());
  // Spec files have their own host time.
  const bool from_file = (spec.empty() && options.limit ? options.limit->device : spec).ends_with(".json");
  if (machine.device && machine.device->gpu && !from_file) machine.device->host_call = kPythonCall;
  if (machine.device) {
    options.spec = &*machine.device;
    options.memory.assumptions = DeviceAssumptions::of(*machine.device);
  }
  if (workspace) options.memory.assumptions.cublas_workspace = workspace_of_python(*workspace);
  if (machine.links) options.interconnect = &*machine.links;
  if (!mesh.empty()) options.mesh = parse_mesh(mesh);
  options.memory.allocator = AllocatorSettings::parse(allocator);
  if (options.limit) options.memory.capacity = options.limit->bytes;
  const MeasuredCalls measured = measured_for(*graph, where, measure);
  options.measured = &measured;
  Profile costs = with_cost_rules([&] { return profile(*graph, options); });
  costs.capture_seconds = seconds;
  if (run != nullptr) {
    DeviceMemoryOptions memory = options.memory;
    memory.device = where;
    costs.run = RunMemory::of(*run, memory);
  }
  const auto nodes = static_cast<uint32_t>(graph->node_capacity());
  return std::make_shared<GraphProfile>(
      GraphProfile{std::move(graph), std::move(costs), options.memory, nodes, std::nullopt});
}

std::string html_of(const GraphProfile& p, const std::string& title, const GraphProfile* before,
                    const std::string& before_title, const std::string& before_json, const std::string& color) {
  const CppCall call;
  std::optional<NodeColors> values;
  if (color.starts_with('{')) {
    values = node_colors_of_text(*p.graph, color, "color");
  } else if (!color.empty()) {
    values = node_colors_of_file(*p.graph, color);
  }
  return to_html(p.costs, {.title = title,
                           .before = before == nullptr ? nullptr : &before->costs,
                           .before_json = before_json,
                           .before_title = before_title,
                           .values = values ? &*values : nullptr});
}

std::pair<py::object, std::string> what_if_of(const GraphProfile& p, std::optional<at::ScalarType> dtype,
                                              const std::string& optimizer, int64_t accumulate,
                                              const std::string& checkpoint, int zero_stage, int64_t ranks) {
  const WhatIf change{.dtype = dtype,
                      .optimizer = optimizer,
                      .accumulate = accumulate,
                      .checkpoint = checkpoint,
                      .zero_stage = zero_stage,
                      .ranks = ranks,
                      .device = p.costs.device};
  WhatIfResult answer;
  {
    const CppCall call;
    answer = what_if(*p.graph, change);
  }
  return std::pair(to_python(to_json(answer)), cli::printable(to_text(answer)));
}

std::pair<py::object, std::string> compare_trace(const GraphProfile& p, const std::string& path, size_t rows) {
  TraceComparison comparison;
  {
    const CppCall call;
    comparison = compare_with_trace(p.costs, path);
  }
  return std::pair(to_python(to_json(comparison)), cli::printable(to_text(comparison, rows)));
}

// Writes `output` and `links` unless empty, and returns the calibration.
py::object calibrate_by_trace(const std::string& trace, const std::string& output, const std::string& links,
                              const std::string& spec) {
  nlohmann::json found;
  {
    const CppCall call;
    const TraceCalibration calibration = calibrate_from_trace(trace, {.device = spec});
    if (!links.empty() && !calibration.links) {
      throw Error(trace + " has no collectives of two or more processes to calibrate links from; omit links=");
    }
    if (!output.empty()) calibration.spec.write_file(output);
    if (!links.empty()) calibration.links->write_file(links);
    found = {{"calls", calibration.calls},
             {"sizes", calibration.sizes},
             {"seconds", calibration.seconds},
             {"collectives", calibration.collectives},
             {"spec", to_json(calibration.spec)},
             {"links", calibration.links ? to_json(*calibration.links) : nlohmann::json()},
             {"left_out", nlohmann::json::array()}};
    for (const SkippedCalls& left : calibration.left_out) {
      found["left_out"].push_back(
          {{"op", left.op}, {"reason", left.reason}, {"calls", left.calls}, {"seconds", left.seconds}});
    }
  }
  return to_python(found);
}

}  // namespace

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

py::object to_python(const nlohmann::json& json) {
  static auto* const loads = new py::object(py::module_::import("json").attr("loads"));
  return (*loads)(json_text(json));
}

void bind_profile(py::module_& m) {
  m.def("calibrate", &calibrate_by_trace, py::arg("trace"), py::arg("output") = "", py::arg("links") = "",
        py::arg("spec") = "");
  m.def("profile_metrics", [] {
    py::list figures;
    for (const ProfileMetric& figure : profile_metrics()) {
      figures.append(py::dict(py::arg("key") = figure.key, py::arg("name") = figure.name(),
                              py::arg("unit") = to_string(figure.unit), py::arg("doc") = figure.doc,
                              py::arg("label") = figure.label, py::arg("required") = figure.required,
                              py::arg("always") = figure.always));
    }
    return figures;
  });
  py::class_<GraphProfile, std::shared_ptr<GraphProfile>> report(m, "Profile");
  for (const ProfileMetric& figure : profile_metrics()) {
    report.def_property_readonly(
        figure.name().c_str(), [&figure](const GraphProfile& p) { return figure.value(p.costs); }, figure.doc.c_str());
  }
  report
      .def(py::init(&profile_of), py::arg("graph"), py::arg("device") = std::nullopt,
           py::arg("capture_seconds") = std::nullopt, py::kw_only(), py::arg("spec") = "", py::arg("allocator") = "",
           py::arg("device_memory") = std::nullopt, py::arg("measure") = false,
           py::arg("run") = std::shared_ptr<Graph>(), py::arg("interconnect") = "", py::arg("mesh") = "",
           py::arg("cublas_workspace") = std::nullopt, py::call_guard<CppCall>(), py::keep_alive<1, 2>())
      .def("nodes_csv", [](const GraphProfile& p) { return nodes_csv(p.costs); })
      .def("storages_csv", [](const GraphProfile& p) { return storages_csv(p.costs); })
      .def("trace_json", [](const GraphProfile& p) { return chrome_trace(p.costs); })
      .def("model_explorer_json", [](const GraphProfile& p) { return json_text(model_explorer(p.costs)); })
      .def("memory_snapshot",
           [](const GraphProfile& p) {
             return p.costs.out_of_memory.empty() ? std::optional(py::bytes(memory_snapshot(p.costs, p.memory)))
                                                  : std::nullopt;
           })
      .def(
          "dict", [](const GraphProfile& p) { return to_python(to_json(p.costs)); },
          "Returns all values as dicts and lists, in the format of docs/profile.schema.json. Unknown ones are absent.")
      .def("_html", &html_of, py::arg("title"), py::arg("before") = py::none(), py::arg("before_title") = "",
           py::arg("before_json") = "", py::arg("color") = "")
      .def("_what_if", &what_if_of, py::arg("dtype"), py::arg("optimizer"), py::arg("accumulate"),
           py::arg("checkpoint"), py::arg("zero_stage"), py::arg("ranks"))
      .def("_compare_trace", &compare_trace, py::arg("path"), py::arg("rows"))
      .def(
          "text",
          [](const GraphProfile& p, const std::string& group, int depth, size_t rows) {
            const SummaryOptions options{
                .grouping = parse<SummaryGrouping>(group, "group"), .depth = depth, .max_rows = rows};
            return cli::printable(fit_summary(p.costs) + to_text(p.costs.summary(options)) + "\n" + to_text(p.costs));
          },
          py::arg("group") = "module", py::arg("depth") = 0, py::arg("rows") = 40,
          "Returns the tables of the command line tool as text.\n\n"
          "group: row per \"module\", \"composite\" or \"operator\".\n"
          "depth: module levels; 0 to choose by the number of rows.\n"
          "rows: maximum number of rows; 0 for all.")
      .def_property_readonly(
          "steady_peak_bytes", [](const GraphProfile& p) { return p.costs.leading_peak().bytes; },
          "peak_bytes of steps after the first, when the optimizer state already exists.")
      .def_property_readonly(
          "fits",
          [](const GraphProfile& p) {
            const auto verdict = fits(p.costs);
            return verdict ? std::optional(verdict->fits) : std::nullopt;
          },
          "True if the program fits in `device_memory`, or else in the memory of `spec`; None if neither is known.\n\n"
          "`dict()[\"fits\"]` has the memory in bytes.")
      .def_property_readonly("graph", [](const GraphProfile& p) { return p.graph; });
}

}  // namespace shadowgraph::python
