#include "shadowgraph/profile/step_time.h"

#include <algorithm>

#include "profiler/program_costs.h"
#include "profiler/time/kernel_classes.h"
#include "profiler/time/operator_tables.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/profile/traffic.h"

namespace shadowgraph {

c10::ScalarType compute_dtype(const Graph& graph, NodeId node) {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  graph.for_each_input(node, [&](ValueId value) {
    const c10::ScalarType candidate = graph.value(value).dtype;
    if (dtype == c10::ScalarType::Undefined && c10::isFloatingType(candidate)) dtype = candidate;
  });
  return dtype == c10::ScalarType::Undefined ? c10::kFloat : dtype;
}

std::string_view to_string(TimeBound bound) {
  constexpr std::array<std::string_view, 7> kNames = {"nothing",  "compute", "memory",   "fixed",
                                                      "measured", "table",   "table_end"};
  return kNames[static_cast<size_t>(bound)];
}

StepTime StepTime::of(const Graph& graph, const DeviceSpec& spec, const MeasuredCalls* measured) {
  return of(ProgramCosts(graph), spec, measured);
}

StepTime StepTime::of(const ProgramCosts& costs, const DeviceSpec& spec, const MeasuredCalls* measured) {
  StepTime time;
  const Graph& graph = costs.graph();
  time.by_node_.reserve(graph.node_capacity());
  time.spec_ = spec.title.empty() ? spec.name : spec.title;
  const Flops& flops = costs.flops();
  const Traffic& traffic = costs.traffic();
  KernelClasses classes(graph);
  TabledTimes tables(graph, spec);
  // Seconds of this machine's kernels say nothing of another device.
  const bool ask = measured != nullptr && measured->size() > 0 && spec.device == c10::kCPU;

  double host = 0;    // when the host has issued the call
  double device = 0;  // when the device is done with it
  double possible = 0;
  for (const NodeId node : costs.nodes) {
    // The links decide what a collective takes (shadowgraph/profile/communication.h).
    NodeTime at{.kind = graph.facts(node).collective ? KernelClass::kFree : classes.of(node)};
    if (at.kind != KernelClass::kFree) {
      ++time.calls_;
      const NodeFlops& work = flops.of(node);
      const c10::ScalarType dtype = compute_dtype(graph, node);
      const auto products = static_cast<double>(classes.computed(node, work.matmul));
      const double rate = spec.compute_rate(at.kind, products, dtype);
      if (products > 0 && rate > 0) at.compute += products / rate;
      if (spec.vector > 0) at.compute += static_cast<double>(work.elementwise) / spec.vector;
      if (spec.transcendental > 0) at.compute += static_cast<double>(work.transcendental) / spec.transcendental;
      const auto bytes = static_cast<double>(traffic.of(node).total());
      if (bytes > 0) at.memory = bytes / spec.memory_rate(at.kind, bytes);
      const double fixed = spec.rates(at.kind).fixed;
      at.seconds = fixed + std::max(at.compute, at.memory);
      at.bound = fixed > std::max(at.compute, at.memory) ? TimeBound::kFixed
                 : at.compute > at.memory                ? TimeBound::kCompute
                                                         : TimeBound::kMemory;
      const CallWork asked{.kind = at.kind, .dtype = dtype, .flops = products, .bytes = bytes};
      if (const auto found = tables.find(node, asked)) {
        at.seconds = found->seconds;
        at.bound = found->inside ? TimeBound::kTable : TimeBound::kTableEnd;
      }
      if (ask) {
        if (const MeasuredCall* call = measured->find(call_signature(graph, node));
            call != nullptr && call->seconds > 0) {
          at.seconds = call->seconds;
          at.bound = TimeBound::kMeasured;
        }
      }
      if (const double peak = spec.peak(at.kind, dtype); peak > 0) {
        possible += static_cast<double>(work.matmul - work.beyond_pytorch) / peak;
      }
      at.issued = spec.host_call > 0 ? host : device;
      host += spec.host_call;
      at.start = std::max(device, host);
      device = at.start + at.seconds;
      time.busy_ += at.seconds;
    }
    time.by_phase_[graph.node(node).phase] += at.seconds;
    time.by_class_[static_cast<size_t>(at.kind)] += at.seconds;
    if (at.kind != KernelClass::kFree) time.by_node_[node] = at;
  }
  time.host_ = host;
  time.seconds_ = device;
  time.utilization_ = device > 0 ? possible / device : 0;
  return time;
}

}  // namespace shadowgraph
