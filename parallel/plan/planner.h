// Simulates plans of one source: what is captured whole and cut for one of them serves the others.
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

// All requests have one device, one training state and one length of sequences.
class PlanSimulator {
 public:
  SimulatedPlan of(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

 private:
  struct CachedRun {
    TrainingPlan plan;  // data parallel innermost, which bytes do not depend on
    double expert_capacity;
    PipelineRun run;
  };

  PlanSchedules schedules_;
  std::map<LayoutSizes, Graph> ranks_;
  std::deque<CachedRun>
      cached_runs_;  // the last few: a search often comes back to one, or to its like in another order
};

// Figures of layers under each way to cut a micro-batch, from captures of a few layers.
struct LayoutCosts {
  ExpertLayers experts;
  std::map<int64_t, std::vector<RecomputeLevel>> chains;  // by ranks that share experts
};

// Figures of layers, and whole steps, of one source on one device and its links, with one training state and one length
// of sequences. How many devices there are, their memory, the batch, and what is tried do not change them.
struct LayerCostCache {
  std::vector<std::string> units;  // where they begin, in the model that tables are made from
  bool layers_differ = false;
  // By sizes, experts on one rank, and whether layers may be on the host, and kept by the curve. nullptr: a step is not
  // cut so.
  std::map<std::tuple<LayoutSizes, bool, bool>, std::unique_ptr<LayoutCosts>> layouts;
  double flops = 0;  // of a sample
  std::vector<std::string> notes;
  PlanSchedules schedules;
  PlanSimulator simulator;
};

class LayerCosts {
 public:
  // All three outlive it.
  LayerCosts(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache)
      : source_(source), request_(request), cache_(cache) {}

  // The ways of the request that a step can be cut, each with its tables; experts are on one rank.
  const std::vector<LayoutSizes>& layouts();
  // nullptr: the step cannot be cut so.
  const LayoutCosts* of(const LayoutSizes& sizes);
  // Data ranks that may share them.
  std::vector<int64_t> expert_ranks(const ExpertLayers& layers) const;

 private:
  struct LayersDiffer {};
  struct StepLevel {
    Recompute what;
    bool on_host;
    Graph step;
    std::vector<std::string> keeps = {};
  };

  int64_t layers_captured() const;  // 0: all
  int64_t more_layers() const;
  std::vector<std::string> layers() const;
  bool by_curve() const;
  std::vector<StepLevel> levels_of(const Graph& kept) const;
  LayerChain chain(const Graph& step, const ExpertRanks& experts) const;
  ExpertLayers experts_of(const Graph& step, int64_t tensor);
  void count_flops(const Graph& step, int64_t tensor, int64_t micro_batch);
  std::vector<int64_t> contexts();
  const LayoutCosts* tables_of(const LayoutSizes& sizes);
  std::vector<LayoutSizes> all_layouts();

  const StepSource& source_;
  const ClusterRequest& request_;
  LayerCostCache& cache_;
  std::optional<std::vector<LayoutSizes>> layouts_;
};

// Nothing is simulated in the answer where nothing fits. Throws Error for requests that make no sense.
PlanAnswer search_plan(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache, bool neighbours);

// The first plan by its bound that fits into `memory` bytes by the figures of layers.
struct FittingPlan {
  TrainingPlan plan;
  Estimate estimate;
};
std::optional<FittingPlan> first_fitting_plan(const StepSource& source, const ClusterRequest& request,
                                              LayerCostCache& cache, int64_t memory);

// One rank's graph of a micro-batch on its part of each sequence, in the precision that is asked for. Tensor parallel is
// as Megatron lays it out, where that can be. Experts are whole, nothing is computed again. `layers`: as StepSize has it.
Graph rank_of_step(const StepSource& source, int64_t layers, const LayoutSizes& sizes, const ClusterRequest& request);
// How many layers are captured in place of all; 0: all are.
int64_t representative_layers(const StepSource& source);
// The same step on a rank's part of each sequence. Throws Error if its source makes no shorter ones, or for tokens that do
// not divide.
StepSource sequence_shard(const StepSource& source, const ClusterRequest& request, int64_t context);
// Throws Error if a step cannot be cut so, of which `part` is on a rank's tokens.
void check_sequence_shards(const Graph& whole, const Graph& part, int64_t context);

// Bytes that a rank may reserve. Throws NoPlanError for devices without room for a program.
int64_t usable_memory(const ClusterRequest& request);
// What a process takes of a device beside its tensors: the context, and buffers of NCCL.
int64_t runtime_overhead_bytes(const DeviceSpec& device);

// A text of what does not fit and of each change that was found. Every change is a plan that was simulated and fits.
std::string suggest_fitting_changes(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache);

// The same step by a number of tokens, in sequences of another length: at least one sample.
ClusterRequest with_sequence(ClusterRequest request, int64_t sequence);

}  // namespace shadowgraph
