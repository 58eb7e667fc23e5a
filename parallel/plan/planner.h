#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/plan/candidate.h"
#include "parallel/plan/plan_space.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/training_plan.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {

// Simulates plans of one source and caches its captured graphs. All requests must have the same device, training state
// and sequence length.
class PlanSimulator {
 public:
  SimulatedPlan of(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

 private:
  struct CachedRun {
    TrainingPlan plan;  // with data parallelism innermost: memory does not depend on it
    double expert_capacity;
    PipelineRun run;
  };

  PlanSchedules schedules_;
  std::map<LayoutSizes, Graph> ranks_;
  std::deque<CachedRun> cached_runs_;  // the most recent ones: searches often repeat a plan in another mesh order
};

// Layer costs for one layout of a micro-batch, from captures of a few layers.
struct LayoutCosts {
  ExpertLayers experts;
  std::map<int64_t, std::vector<RecomputeLevel>> chains;  // by expert-parallel degree
};

// Cache of layer costs and captured steps of one source, for one device, interconnect, training state and sequence
// length. It does not depend on the number of devices, their memory, the batch or the search space.
struct LayerCostCache {
  std::vector<std::string> units;  // modules at which they begin, in the model with few layers
  bool layers_differ = false;
  // By sizes with one expert rank, whether layers may be offloaded, and whether kCurve is searched. nullptr: the step
  // cannot be sharded this way.
  std::map<std::tuple<LayoutSizes, bool, bool>, std::unique_ptr<LayoutCosts>> layouts;
  double flops = 0;  // per sample
  std::vector<std::string> notes;
  PlanSchedules schedules;
  PlanSimulator simulator;
};

// Searches for the best plan; ClusterPlan::simulated is empty if nothing fits. Throws Error for invalid requests.
ClusterPlan search_plan(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache, bool neighbors);

// A plan that fits according to layer costs. first_fitting_plan() returns the one with the lowest bound.
struct FittingPlan {
  TrainingPlan plan;
  Estimate estimate;
};
std::optional<FittingPlan> first_fitting_plan(const StepSource& source, const ClusterRequest& request,
                                              LayerCostCache& cache, int64_t memory);

// Returns one rank's graph of a micro-batch, sharded by tensor and context parallelism, in the requested precision.
// Tensor parallelism uses Megatron-LM's layout where possible. Without expert parallelism and recompute. `layers`: as
// in StepSize.
Graph rank_of_step(const StepSource& source, int64_t layers, const LayoutSizes& sizes, const ClusterRequest& request);
// Number of layers captured to represent the whole model; 0: all are captured.
int64_t representative_layers(const StepSource& source);
// Returns the source of the step on a rank's part of each sequence. Throws Error if the source has a fixed sequence
// length, or if tokens do not divide evenly.
StepSource sequence_shard(const StepSource& source, const ClusterRequest& request, int64_t context);
// Throws Error if the step does not support context parallelism. `part` is the step on one rank's tokens.
void check_sequence_shards(const Graph& whole, const Graph& part, int64_t context);

// Bytes that a rank's caching allocator may reserve. Throws InfeasibleError if the runtime overhead exceeds the memory.
int64_t usable_memory(const ClusterRequest& request);
// Device memory used by the CUDA context and NCCL buffers, in bytes.
int64_t runtime_overhead_bytes(const DeviceSpec& device);

// Describes why no plan fits, and lists changes of the request that fit. Each change was verified by simulation.
std::string suggest_fitting_changes(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache);

// Returns the request with another sequence length and the same number of tokens, with at least one sample.
ClusterRequest with_sequence(ClusterRequest request, int64_t sequence);

}  // namespace shadowgraph
