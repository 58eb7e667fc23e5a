// Adds up what the pieces of each stage take.
#pragma once

#include <vector>

#include "parallel/stages/stage_assignment.h"
#include "parallel/stages/stage_memory.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/parallel/stages.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {

// Seconds of every node, its collective included. A call takes the host's time at least.
class NodeSeconds {
 public:
  NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links);
  double of(NodeId node) const { return seconds_[node]; }
  const Communication& communication() const { return communication_; }

 private:
  Communication communication_;
  IdMap<NodeId, double> seconds_{0};
};

// Writes the segments of each stage's pieces.
void add_segments(const ProgramCosts& costs, const StageAssignment& assignment, const NodeSeconds& seconds,
                  StageParts& parts);

void add_seconds(const ProgramCosts& costs, const StageAssignment& assignment, const StageMemory& memory,
                 const NodeSeconds& seconds, const DeviceSpec& spec, std::vector<StageFigures>& figures);

}  // namespace shadowgraph
