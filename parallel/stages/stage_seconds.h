#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "parallel/stages/forward_line.h"
#include "parallel/stages/stage_memory.h"
#include "parallel/stages/stage_parts.h"
#include "profiler/program_costs.h"
#include "profiler/time/copy_engines.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

// Returns the given spec, or the default one for the graph's device. Throws Error if there is none.
inline DeviceSpec given_or_usual_spec(const DeviceSpec* given, const Graph& graph) {
  if (given != nullptr) return *given;
  return Machine::find({}, {}, {}, main_device(graph, std::nullopt).type()).specs();
}

// Distinguishes collectives on sharded parameters and their gradients from those on activations.
class ShardedParameters {
 public:
  // `gathers_once`: as in StageOptions; if false, only all_reduces of gradients are recognized.
  ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment, const Communication& communication,
                    bool gathers_once);
  // Returns whether it gathers parameters: FSDP's all_gather, in forward and in backward.
  bool gathers(const Collective& collective) const { return gathers_[collective.node] != 0; }
  // Returns whether it reduces weight gradients: FSDP's reduce_scatter, DistributedDataParallel's all_reduce.
  bool reduces(const Collective& collective) const { return reduces_[collective.node] != 0; }

 private:
  IdMap<NodeId, char> gathers_{0}, reduces_{0};
};

// Time of every node; at least the launch time of the host.
class NodeSeconds {
 public:
  NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links);
  // Includes hidden collectives; copies by copy engines count as 0.
  double of(NodeId node) const { return seconds_[node]; }
  double copying(NodeId node) const { return overlaps_kernels(graph_, node) ? time_.of(node).seconds : 0; }
  double computing(NodeId node) const;
  const Communication& communication() const { return communication_; }

  // Exposed communication: how much longer the nodes of a piece take because of collectives for which `takes` is true.
  double exposed(std::span<const NodeId> nodes, const std::function<bool(const Collective&)>& takes) const;

 private:
  // `communicate` false: collectives take no time.
  double scheduled(std::span<const NodeId> nodes, bool communicate,
                   const std::function<double(const Collective&)>& seconds) const;

  const Graph& graph_;
  const StepTime time_;
  Communication communication_;
  IdMap<NodeId, double> seconds_{0};
};

std::vector<StageNodes> nodes_by_stage(const ProgramCosts& costs, const StageAssignment& assignment);

void add_segments(const ProgramCosts& costs, const StageAssignment& assignment, const NodeSeconds& seconds,
                  StageParts& parts);

void add_seconds(const ProgramCosts& costs, const StageAssignment& assignment, const StageMemory& memory,
                 const NodeSeconds& seconds, const ShardedParameters& sharded, const DeviceSpec& spec,
                 std::span<const StageNodes> nodes, std::vector<StageCosts>& figures);

}  // namespace shadowgraph
