// Computing and communicating at the same time.
//
// Two streams work through the program in its order. A collective begins when the computing stream has done what was
// issued before it and the communicating one is free. A synchronous one holds computing up until it ends. An
// asynchronous one does so until its result is waited for (wait_tensor) or first used. So
//
//     max(compute, communication) <= seconds <= compute + communication
//
// where compute is the step without its collectives, waiting for the host included.
//
//     OverlappedStep::of(graph, communication, step_time).seconds();       // of the step
#pragma once

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class Communication;  // shadowgraph/profile/communication.h
class StepTime;       // shadowgraph/profile/step_time.h

class OverlappedStep {
 public:
  static OverlappedStep of(const Graph& graph, const Communication& communication, const StepTime& time);

  double seconds() const { return seconds_; }
  double compute() const { return compute_; }
  double communication() const { return communication_; }
  double at_least() const { return compute_ > communication_ ? compute_ : communication_; }
  double at_most() const { return compute_ + communication_; }
  double exposed() const { return seconds_ - compute_; }  // communication that nothing hides
  // When a node begins, on its stream; from the beginning of the step.
  double start(NodeId node) const { return start_[node]; }

 private:
  IdMap<NodeId, double> start_;
  double seconds_ = 0;
  double compute_ = 0;
  double communication_ = 0;
};

}  // namespace shadowgraph
