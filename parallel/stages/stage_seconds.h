// Seconds of nodes, and of the pieces of each stage.
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
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

// Throws Error where nothing is known of such devices.
inline DeviceSpec given_or_usual_spec(const DeviceSpec* given, const Graph& graph) {
  if (given != nullptr) return *given;
  return Machine::find({}, {}, {}, main_device(graph, std::nullopt).type()).specs();
}

// Tells the collectives that gather sharded parameters and add up their gradients from those of activations.
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

// Seconds of every node. A call takes the host's time at least.
class NodeSeconds {
 public:
  NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links);
  // A collective's are those it takes, whatever hides them; a copy of an engine takes none.
  double of(NodeId node) const { return seconds_[node]; }
  double copying(NodeId node) const { return is_beside_kernels(graph_, node) ? time_.of(node).seconds : 0; }
  double computing(NodeId node) const;
  const Communication& communication() const { return communication_; }

  // How much longer nodes of one piece take, in program order, because of their collectives: those of which `takes` is
  // true. The others take no time.
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

// Writes the segments of each stage's pieces.
void add_segments(const ProgramCosts& costs, const StageAssignment& assignment, const NodeSeconds& seconds,
                  StageParts& parts);

void add_seconds(const ProgramCosts& costs, const StageAssignment& assignment, const StageMemory& memory,
                 const NodeSeconds& seconds, const ShardedParameters& sharded, const DeviceSpec& spec,
                 std::span<const StageNodes> nodes, std::vector<StageFigures>& figures);

}  // namespace shadowgraph
