// Tells the collectives that gather sharded parameters and add up their gradients from those of activations.
#pragma once

#include "parallel/stages/stage_assignment.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {

class ShardedParameters {
 public:
  // `gathers_once`: as StageOptions has it; otherwise gradients that stay whole are all that there is.
  ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment, const Communication& communication,
                    bool gathers_once);
  // What it reads comes from parameters alone: FSDP's all_gather, in forward and again in backward.
  bool gathers(const Collective& collective) const { return gathers_[collective.node] != 0; }
  // It leads to gradients of weights alone: FSDP's reduce_scatter, DistributedDataParallel's all_reduce.
  bool reduces(const Collective& collective) const { return reduces_[collective.node] != 0; }

 private:
  IdMap<NodeId, char> gathers_{0}, reduces_{0};
};

}  // namespace shadowgraph
