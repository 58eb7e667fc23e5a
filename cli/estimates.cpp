#include "cli/estimates.h"

#include <fmt/format.h>

#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/device_spec.h"

namespace shadowgraph::cli {

Estimates::Estimates(const EstimateRequest& request, const Graph& graph) {
  options_.memory.allocator = AllocatorSettings::parse(request.allocator);
  options_.limit = request.memory;
  if (request.memory) options_.memory.capacity = request.memory->bytes;
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCPU));
  machine_ = Machine::find(request.spec, request.interconnect, request.memory, device.type());
  if (device.is_cpu()) measured_ = MeasuredCalls::read_file(MeasuredCalls::default_file());
  if (request.measure) measure(graph);
  options_.measured = &measured_;
  if (machine_.device) {
    options_.spec = &*machine_.device;
    options_.memory.assumptions = DeviceAssumptions::of(*machine_.device);
  }
  if (machine_.links) options_.interconnect = &*machine_.links;
  if (!request.mesh.empty()) options_.mesh = parse_mesh(request.mesh);
}

void Estimates::measure(const Graph& graph) {
  const MeasureReport report = measure_calls(graph, measured_);
  print_log("shadowgraph: measured {} distinct calls; {} were already measured\n", report.measured, report.known);
  for (const UnmeasuredCall& call : report.left_out) {
    print_log("shadowgraph: not measured: {} x{}: {}\n", call.op, call.calls, call.reason);
  }
  measured_.write_file(MeasuredCalls::default_file());
}

std::unique_ptr<Profiled> load_and_profile(const CaptureRequest& capture, const EstimateRequest& request) {
  auto result = std::make_unique<Profiled>(Profiled{load(capture), nullptr, {}, {}});
  const LoadedGraph& loaded = result->loaded;
  const Progress progress("profiling " + loaded.name);
  verify(loaded.graph);
  result->estimates = std::make_unique<Estimates>(request, loaded.graph);
  result->costs = profile(loaded.graph, result->estimates->options());
  result->costs.capture_seconds = loaded.capture_seconds;
  if (!result->costs.communication() && !(request.mesh.empty() && request.interconnect.empty())) {
    throw Error(
        fmt::format("{} has no effect: the program has no communication. Use `shadowgraph shard SOURCE --mesh` to "
                    "shard a step over devices",
                    request.mesh.empty() ? "--interconnect" : "--mesh"));
  }
  if (!request.allocator.empty() && result->costs.device.is_cpu()) {
    throw Error(
        "--allocator has no effect: it configures CUDA's caching allocator, and this program runs on the CPU; remove "
        "it, or use --device cuda");
  }
  result->title = loaded.capture_seconds ? loaded.name : capture.source;
  return result;
}

void write_page(const std::string& path, const Profiled& profiled, const HtmlOptions& options) {
  const Progress progress("writing " + path);
  const std::string html = to_html(profiled.costs, options);
  write_file(path, html);
  print_log("{}: {} nodes, {}\n", path, profiled.loaded.graph.node_count(),
            human_bytes(static_cast<int64_t>(html.size())));
}

}  // namespace shadowgraph::cli
