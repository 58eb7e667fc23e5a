// Computing and communicating at the same time.
//
// A capture notes on which stream the program issued each node, and for which events it waited. Kernels run there, in
// order. A synchronous collective runs on the current stream, too, as NCCL's do. An asynchronous one runs on its group's
// stream: it begins when the current one has done what was issued before. What uses its result waits for it
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
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/collective_kind.h"

namespace SHADOWGRAPH_API shadowgraph {

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
