// Says how long a graph takes on a device: a roofline over what each call computes and moves.
//
//     const DeviceSpec h100 = DeviceSpec::named("h100");
//     const StepTime time = StepTime::of(graph, h100);
//     time.seconds(); time.of(node).seconds; time.flop_utilization();
//
// A kernel takes its class's fixed time and the longer of computing and moving. On a GPU the laws of docs/time.md say how
// long these are. On a device with host_call > 0 kernels
// run one after another behind the host, which needs host_call for each call that is no view. A step whose kernels are
// shorter than that waits for the host. Elsewhere calls add up. Not counted are links of copies between devices,
// but for those of engines (shadowgraph/passes/offload.h), collectives (shadowgraph/profile/communication.h) and what the
// host does between calls.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/kernel_class.h"

namespace SHADOWGRAPH_API shadowgraph {

class MeasuredCalls;  // shadowgraph/profile/measure.h
class ProgramCosts;

// kTable: by the device's tables, within their sizes. kTableEnd: beyond them, by the roofline scaled as at their end.
enum class TimeBound : uint8_t { kNothing, kCompute, kMemory, kFixed, kMeasured, kTable, kTableEnd };
std::string_view to_string(TimeBound bound);  // "nothing", "compute", ..., "table", "table_end"

struct NodeTime {
  double start = 0;   // of the kernel, from the beginning of the step; seconds, as all here
  double issued = 0;  // when the host begins with the call
  double seconds = 0;
  double compute = 0;
  double memory = 0;
  KernelClass kind = KernelClass::kFree;
  TimeBound bound = TimeBound::kNothing;
};

class StepTime {
 public:
  // `measured`, if given, has the seconds of calls on the CPU that were measured; asked if the spec is a CPU's.
  static StepTime of(const Graph& graph, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);
  static StepTime of(const ProgramCosts& costs, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);

  double seconds() const { return seconds_; }                       // of the step
  double busy() const { return busy_; }                             // of it, the device is at work
  double host() const { return host_; }                             // of the host's calls alone
  double waiting() const { return seconds_ - busy_; }               // the device waits for the host
  double seconds(PhaseId phase) const { return by_phase_[phase]; }  // of kernels
  double seconds(KernelClass kind) const { return by_class_[static_cast<size_t>(kind)]; }
  const NodeTime& of(NodeId node) const { return by_node_[node]; }
  // FLOPs of matrix products, as PyTorch counts them, by what the device could have done in the time: MFU.
  double flop_utilization() const { return utilization_; }
  const std::string& spec() const { return spec_; }
  int64_t calls() const { return calls_; }

 private:
  IdMap<NodeId, NodeTime> by_node_;
  IdMap<PhaseId, double> by_phase_;
  std::array<double, kKernelClassCount> by_class_{};
  double seconds_ = 0;
  double busy_ = 0;
  double host_ = 0;
  double utilization_ = 0;
  int64_t calls_ = 0;
  std::string spec_;
};

}  // namespace shadowgraph
