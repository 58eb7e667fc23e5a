#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Throws Error for a request with an empty search space or invalid options.
void check(const ClusterRequest& request);

// Overlap of tensor-parallel collectives; kNone without tensor parallelism.
CollectiveOverlap overlap_of(const ClusterRequest& request, int64_t tensor);
std::vector<TensorParallelLayout> tensor_layouts(const ClusterRequest& request, int64_t tensor);
std::vector<AttentionKernel> attention_kernels(const ClusterRequest& request);
std::vector<int64_t> tensor_sizes(const ClusterRequest& request);
// Context-parallel degrees. By default each rank has at least 8,192 tokens.
std::vector<int64_t> context_sizes(const ClusterRequest& request);
std::vector<int64_t> micro_batches(const ClusterRequest& request, int64_t context);
// Expert-parallel degrees for layers with this many experts.
std::vector<int64_t> expert_sizes(const ClusterRequest& request, int64_t experts);

// Counts of a stage's layers: key in JSON, and suffix in texts.
struct StageCount {
  const char *key, *suffix;
  int64_t PlannedStage::*count;
};
constexpr StageCount kStageCounts[] = {{"recomputed", "", &PlannedStage::recomputed},
                                       {"selective", "s", &PlannedStage::selective},
                                       {"in_part", "c", &PlannedStage::in_part},
                                       {"offloaded", "h", &PlannedStage::offloaded}};

// Group of the rows of TrainingPlan::table() that neighbors of the best plan vary.
constexpr const char* kNeighbors = "neighbors";

struct LayoutSizes {
  int64_t tensor = 1, context = 1, micro_batch = 1;
  int64_t experts = 1;  // expert-parallel degree
  CollectiveOverlap overlap = CollectiveOverlap::kNone;
  AttentionKernel attention = AttentionKernel::kDevice;
  TensorParallelLayout layout = TensorParallelLayout::kMegatron;
  static LayoutSizes of(const TrainingPlan& plan);
  friend auto operator<=>(const LayoutSizes&, const LayoutSizes&) = default;
};
// Returns all plans of these sizes, without stages. `units` of the model limit the number of stages.
std::vector<TrainingPlan> plans_of(const ClusterRequest& request, const LayoutSizes& sizes, int64_t units);

// Placement of a parallelism axis on the interconnect.
struct PlacedAxis {
  std::string axis;   // "tensor", "context", "data", "pipeline"
  int64_t ranks = 1;  // per group
  int64_t apart = 1;  // rank distance of neighbors in a group
  std::string level;  // outermost link level that a group uses
};
// Axes of more than one rank, innermost first.
std::vector<PlacedAxis> placement_of(const TrainingPlan& plan, const Interconnect& links);
std::string to_string(const std::vector<PlacedAxis>& placed);

// Throws Error if the interconnect joins too few devices, or has costs for unknown axes.
void check_links(const ClusterRequest& request);

}  // namespace shadowgraph
