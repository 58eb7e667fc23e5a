// Adds up what the pieces of each stage take.
#pragma once

#include <vector>

#include "parallel/stages/stage_assignment.h"
#include "parallel/stages/stage_memory.h"
#include "shadowgraph/parallel/stages.h"

namespace shadowgraph {

// Seconds of every node, its collective included. A call takes the host's time at least.
class NodeSeconds {
 public:
  NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links);
  double of(NodeId node) const { return seconds_[node]; }

 private:
  IdMap<NodeId, double> seconds_{0};
};

void add_seconds(const ProgramCosts& costs, const StageAssignment& assignment, const StageMemory& memory,
                 const NodeSeconds& seconds, const DeviceSpec& spec, std::vector<StageFigures>& figures);

}  // namespace shadowgraph
