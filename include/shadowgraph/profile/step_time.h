// Time of a step on a device: a roofline model of the FLOPs and bytes of each call.
//
// A kernel takes the fixed time of its class plus the larger of compute and memory time (docs/time.md). On a device
// with host_call > 0, kernels run one after another, asynchronously to the host, which needs host_call for each call
// other than a view; a step with shorter kernels is bound by the host. Otherwise, call times are added up.
//
// A copy between the host and a device takes the time of its bytes on the host's link (HostSpec::link). It is in order
// with the kernels of its stream, unless it is on another one or offloads (shadowgraph/passes/recompute.h), and the
// host waits for it unless it is non_blocking. In a program on a GPU, operators on CPU tensors take the host the time
// of their bytes (HostSpec::bandwidth). Not included are copies between two GPUs, collectives
// (shadowgraph/profile/communication.h), and host work between calls. uncovered() lists calls with lower bounds.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"

namespace SHADOWGRAPH_API shadowgraph {

class MeasuredCalls;  // shadowgraph/profile/measure.h
class ProgramCosts;

// Factor that determines a time. kTable: measured, within the table's sizes; kTableEnd: extrapolated beyond them.
// kLink: the link to the host. kHost: the call runs on the host, not on the device.
enum class TimeBound : uint8_t { kNothing, kCompute, kMemory, kFixed, kMeasured, kTable, kTableEnd, kLink, kHost };
constexpr auto enum_names(TimeBound) {
  return names_in_order<TimeBound>("nothing", "compute", "memory", "fixed", "measured", "table", "table_end", "link",
                                   "host");
}

struct NodeTime {
  double start = 0;   // start of the kernel in seconds since the beginning of the step
  double issued = 0;  // time at which the host starts the call
  double seconds = 0;
  double compute = 0;
  double memory = 0;
  KernelClass kind = KernelClass::kFree;
  TimeBound bound = TimeBound::kNothing;
};

class StepTime {
 public:
  // `measured`, if given, has measured times of calls on this CPU; used if `spec` is that of a CPU.
  static StepTime of(const Graph& graph, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);
  static StepTime of(const ProgramCosts& costs, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);

  double seconds() const { return seconds_; }                       // time of the program: of all captured steps
  double busy() const { return busy_; }                             // time that the device is busy
  double host() const { return host_; }                             // time of the host's calls
  double waiting() const { return seconds_ - busy_; }               // time that the device waits for the host
  double seconds(PhaseId phase) const { return by_phase_[phase]; }  // time of kernels
  double seconds(KernelClass kind) const { return by_class_[static_cast<size_t>(kind)]; }
  const NodeTime& of(NodeId node) const { return by_node_[node]; }
  // Model FLOPs utilization (MFU): FLOPs of matrix products, as counted by PyTorch but without the scores that a causal
  // mask excludes, over the peak FLOPs in that time.
  double flop_utilization() const { return utilization_; }
  const std::string& spec() const { return spec_; }
  int64_t calls() const { return calls_; }
  // Number of captured steps, from the metadata "steps" of loops, which count those of their optimizers; 0: unknown,
  // since a loop steps its optimizers unequally, or has none and calls its modules repeatedly. 1 without metadata.
  int64_t steps() const { return steps_; }
  // Returns the mean over the captured steps; `total` itself if their number is unknown.
  double per_step(double total) const { return total / static_cast<double>(std::max<int64_t>(1, steps_)); }
  // Calls of which part of the time is unknown, and not included: no FLOP formula, or a link or host memory of unknown
  // bandwidth. Sorted by name. If there are any, all times are lower bounds.
  const std::vector<UncoveredOperator>& uncovered() const { return uncovered_; }

 private:
  IdMap<NodeId, NodeTime> by_node_;
  IdMap<PhaseId, double> by_phase_;
  std::array<double, kKernelClassCount> by_class_{};
  double seconds_ = 0;
  double busy_ = 0;
  double host_ = 0;
  double utilization_ = 0;
  int64_t calls_ = 0;
  int64_t steps_ = 1;
  std::string spec_;
  std::vector<UncoveredOperator> uncovered_;
};

// Overlap of compute and communication.
//
// A capture records the stream of each node and the events it waits for. Kernels of a stream run in order. A
// synchronous collective runs on the current stream, as with NCCL; an asynchronous one runs on its group's stream and
// starts when the work issued before on the current stream is done. Users of its result wait for it (wait_tensor, or
// the first use). A kernel starts after its operands are available, regardless of their stream.
//
// Collectives of one group run one after another; kernels of several streams alternate. A collective takes
// Communication::device_share of the device from concurrent kernels. Hence
//
//     seconds = kernels + slowed + waits for collectives + waits for the host
//     max(compute, communication of one group) <= seconds <= compute + communication
//
// where compute is the time of the step without its collectives, including waits for the host.

// Time in which the device waits for a collective.
struct Exposure {
  NodeId collective;
  NodeId waiter;  // the delayed kernel; invalid: the step ends with the collective
  double seconds = 0;
};

// Exposed time by kind of collective, group, and the phases of the collective and of the waiting kernel.
struct ExposureCause {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  uint32_t group = 0;  // index in Communication::groups()
  PhaseId phase;
  std::optional<PhaseId> waiter;  // std::nullopt: the end of the step
  int64_t waits = 0;              // number of waits
  double seconds = 0;
};

class OverlappedStep {
 public:
  // Throws Error for invalid stream notes.
  static OverlappedStep of(const Graph& graph, const Communication& communication, const StepTime& time);

  double seconds() const { return seconds_; }
  double compute() const { return compute_; }
  double communication() const { return communication_; }
  double at_least() const { return at_least_; }  // maximum of compute and the communication of each group
  double at_most() const { return compute_ + communication_; }
  double exposed() const { return seconds_ - compute_; }  // exposed communication: waits and slowdown of kernels
  double slowed() const { return slowed_; }               // slowdown of kernels that run concurrently with collectives
  double waits_for_host() const { return waits_for_host_; }
  // As of StepTime.
  int64_t steps() const { return steps_; }
  double per_step(double total) const { return total / static_cast<double>(std::max<int64_t>(1, steps_)); }

  std::span<const Exposure> exposures() const { return exposures_; }  // in chronological order
  std::span<const ExposureCause> causes() const { return causes_; }   // by decreasing time
  // Start and end of a node on its stream, in seconds since the beginning of the step; equal if it takes no time.
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
  int64_t steps_ = 1;
};

// "all_gather of fsdp, forward", "reduce_scatter of fsdp, backward, until the optimizer", "..., until the end".
std::string to_string(const ExposureCause& cause, const Graph& graph, const Communication& communication);

}  // namespace shadowgraph
