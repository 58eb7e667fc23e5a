#include "shadowgraph/profile/step_time.h"

#include <algorithm>

#include "profiler/program_costs.h"
#include "profiler/time/copy_engines.h"
#include "profiler/time/kernel_work.h"
#include "profiler/time/operator_tables.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {

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
  KernelWorks works(costs, spec);
  TabledTimes tables(graph, spec);
  // Seconds of this machine's kernels say nothing of another device.
  const bool ask = measured != nullptr && measured->size() > 0 && spec.device == c10::kCPU;

  double host = 0;    // when the host has issued the call
  double device = 0;  // when the device is done with it
  double possible = 0;
  CopyEngines engines(graph, spec);
  for (const NodeId node : costs.nodes) {
    if (is_beside_kernels(graph, node)) {
      const double issued = std::max({host, device, engines.ready(node)});
      NodeTime& at = time.by_node_[node];
      at = {.kind = KernelClass::kCopy, .bound = TimeBound::kMemory};
      at.seconds = at.memory = engines.seconds(node);
      at.issued = spec.host_call > 0 ? host : device;
      at.start = engines.run(node, issued);
      host += spec.host_call;
      ++time.calls_;
      continue;
    }
    // The links decide what a collective takes (shadowgraph/profile/communication.h).
    KernelWork work;
    if (!graph.facts(node).collective) work = works.of(node);
    NodeTime at{.kind = work.kind};
    if (at.kind != KernelClass::kFree) {
      ++time.calls_;
      const KernelSeconds kernel = kernel_seconds(spec, work);
      at.compute = kernel.compute;
      at.memory = kernel.memory;
      at.seconds = kernel.total();
      at.bound = kernel.fixed > std::max(at.compute, at.memory) ? TimeBound::kFixed
                 : at.compute > at.memory                       ? TimeBound::kCompute
                                                                : TimeBound::kMemory;
      if (const auto found = tables.find(node, work)) {
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
      const NodeFlops& done = flops.of(node);
      if (const double peak = spec.peak(at.kind, work.dtype); peak > 0) {
        possible += static_cast<double>(done.matmul - done.beyond_pytorch) / peak;
      }
      at.issued = spec.host_call > 0 ? host : device;
      host += spec.host_call;
      at.start = std::max({device, host, engines.ready(node)});
      device = at.start + at.seconds;
      time.busy_ += at.seconds;
    }
    time.by_phase_[graph.node(node).phase] += at.seconds;
    time.by_class_[static_cast<size_t>(at.kind)] += at.seconds;
    if (at.kind != KernelClass::kFree) time.by_node_[node] = at;
  }
  time.host_ = host;
  device = std::max(device, engines.end());
  time.seconds_ = device;
  time.utilization_ = device > 0 ? possible / device : 0;
  return time;
}

}  // namespace shadowgraph
