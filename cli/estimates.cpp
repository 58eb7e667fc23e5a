#include "cli/estimates.h"

#include <fmt/format.h>

#include <cstdio>

namespace shadowgraph::cli {

Estimates::Estimates(const ProfileRequest& request, const Graph& graph) {
  options_.memory.allocator = AllocatorSettings::parse(request.allocator);
  if (request.device_memory) options_.memory.capacity = *request.device_memory;
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCPU));
  spec_ = DeviceSpec::find(request.spec, device.type());
  if (device.is_cpu()) measured_ = MeasuredCalls::read_file(MeasuredCalls::default_file());
  if (request.measure) measure(graph);
  options_.measured = &measured_;
  if (spec_) options_.spec = &*spec_;
  if (!request.interconnect.empty()) {
    links_ = Interconnect::find(request.interconnect);
  } else if (spec_) {
    links_ = Interconnect::around(spec_->name);
  }
  if (links_) options_.interconnect = &*links_;
  if (!request.mesh.empty()) options_.mesh = parse_mesh(request.mesh);
}

void Estimates::measure(const Graph& graph) {
  const MeasureReport report = measure_calls(graph, measured_);
  fmt::print(stderr, "shadowgraph: measured {} distinct calls, {} were known\n", report.measured, report.known);
  for (const UnmeasuredCall& call : report.left_out) {
    fmt::print(stderr, "shadowgraph: not measured: {} x{}: {}\n", call.op, call.calls, call.reason);
  }
  measured_.write_file(MeasuredCalls::default_file());
}

}  // namespace shadowgraph::cli
