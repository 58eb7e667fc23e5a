// Says how long a graph takes on a device: a roofline over what each call computes and moves.
//
//     const DeviceSpec h100 = DeviceSpec::named("h100");
//     const StepTime time = StepTime::of(graph, h100);
//     time.seconds(); time.of(node).seconds; time.flop_utilization();
//
// A kernel takes its class's fixed time and the longer of computing and moving. On a GPU the laws of docs/time.md say
// how long these are. On a device with host_call > 0 kernels run one after another behind the host, which needs
// host_call for each call that is no view. A step whose kernels are shorter than that waits for the host. Elsewhere
// calls add up. Not counted are links of copies between devices, but for those of engines
// (shadowgraph/passes/recompute.h), collectives (shadowgraph/profile/communication.h) and what the host does between
// calls.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"

namespace SHADOWGRAPH_API shadowgraph {

class MeasuredCalls;  // shadowgraph/profile/measure.h
class ProgramCosts;

// kTable: by the device's tables, within their sizes. kTableEnd: beyond them, by the roofline scaled as at their end.
enum class TimeBound : uint8_t { kNothing, kCompute, kMemory, kFixed, kMeasured, kTable, kTableEnd };
constexpr auto enum_names(TimeBound) {
  return names_in_order<TimeBound>("nothing", "compute", "memory", "fixed", "measured", "table", "table_end");
}

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

// Computing and communicating at the same time.
//
// A capture notes on which stream the program issued each node, and for which events it waited. Kernels run there, in
// order. A synchronous collective runs on the current stream, too, as NCCL's do. An asynchronous one runs on its
// group's stream: it begins when the current one has done what was issued before. What uses its result waits for it
// (wait_tensor, or the first use). Whatever a kernel reads is there first, on whichever stream it was made.
//
// Collectives of one group run one after another. Kernels of several streams take turns. A collective takes
// Communication::device_share of the device from the kernels beside it. So
//
//     seconds = kernels + slowed + waits for collectives + waits for the host
//     max(compute, communication of one group) <= seconds <= compute + communication
//
// where compute is the step without its collectives, waiting for the host included.
//
//     const OverlappedStep step = OverlappedStep::of(graph, communication, step_time);
//     step.seconds();                                                 // of the step
//     for (const ExposureCause& cause : step.causes()) cause.seconds; // what it waits for

class Communication;  // shadowgraph/profile/communication.h
class StepTime;       // shadowgraph/profile/step_time.h

// The device computes nothing until a collective is done.
struct Exposure {
  NodeId collective;
  NodeId waiter;  // the kernel that could not begin; invalid: the step ends with the collective
  double seconds = 0;
};

// Exposures of one kind of collective in one group, by the phases of what is waited for and of what waits.
struct ExposureCause {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint32_t group = 0;  // in Communication::groups()
  PhaseId phase;
  std::optional<PhaseId> waiter;  // none: the end of the step
  int64_t waits = 0;              // how many
  double seconds = 0;
};

class OverlappedStep {
 public:
  // Throws Error for notes of streams that are none.
  static OverlappedStep of(const Graph& graph, const Communication& communication, const StepTime& time);

  double seconds() const { return seconds_; }
  double compute() const { return compute_; }
  double communication() const { return communication_; }
  double at_least() const { return at_least_; }  // the longest of computing and of each group's communicating
  double at_most() const { return compute_ + communication_; }
  double exposed() const { return seconds_ - compute_; }  // what communication costs: waits and slower kernels
  double slowed() const { return slowed_; }               // how much longer kernels take beside collectives
  double waits_for_host() const { return waits_for_host_; }

  std::span<const Exposure> exposures() const { return exposures_; }  // in the order of time
  std::span<const ExposureCause> causes() const { return causes_; }   // most seconds first
  // When a node begins and ends, on its stream; from the beginning of the step. Nodes that take no time do so at once.
  double start(NodeId node) const { return start_[node]; }
  double end(NodeId node) const { return end_[node]; }

 private:
  IdMap<NodeId, double> start_, end_;
  std::vector<Exposure> exposures_;
  std::vector<ExposureCause> causes_;
  double seconds_ = 0;
  double compute_ = 0;
  double communication_ = 0;
  double at_least_ = 0;
  double slowed_ = 0;
  double waits_for_host_ = 0;
};

// "all_gather of fsdp, forward", "reduce_scatter of fsdp, backward, until the optimizer", "..., until the end".
std::string to_string(const ExposureCause& cause, const Graph& graph, const Communication& communication);

}  // namespace shadowgraph
