// Goes through the knobs of a plan.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Throws Error for a request that leaves nothing to try, and says which knob.
void check(const ClusterRequest& request);

// What hides collectives of tensor parallel; nothing where there is none.
CollectiveOverlap overlap_of(const ClusterRequest& request, int64_t tensor);
std::vector<TensorLayout> tensor_layouts(const ClusterRequest& request, int64_t tensor);
std::vector<AttentionKernel> attention_kernels(const ClusterRequest& request);
std::vector<int64_t> tensor_sizes(const ClusterRequest& request);
// Ranks that may share a sequence, where it is long: each has 8,192 tokens at least, unless asked.
std::vector<int64_t> context_sizes(const ClusterRequest& request);
std::vector<int64_t> micro_batches(const ClusterRequest& request, int64_t context);
// Ranks that may share layers of so many experts.
std::vector<int64_t> expert_sizes(const ClusterRequest& request, int64_t experts);

// Rows of TrainingPlan::table() whose other values neighbours of a plan have.
constexpr const char* kNeighbours = "neighbours";

struct LayoutSizes {
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t micro_batch = 1;
  int64_t experts = 1;  // ranks that share them
  CollectiveOverlap overlap = CollectiveOverlap::kNone;
  AttentionKernel attention = AttentionKernel::kDevices;
  TensorLayout layout = TensorLayout::kMegatron;
  static LayoutSizes of(const TrainingPlan& plan);
  friend auto operator<=>(const LayoutSizes&, const LayoutSizes&) = default;
};
// Each plan of these sizes, without stages. `units`: of the model, which has at most so many stages.
std::vector<TrainingPlan> plans_of(const ClusterRequest& request, const LayoutSizes& sizes, int64_t units);

// Which links each axis of a plan goes over.
struct PlacedAxis {
  std::string axis;   // "tensor", "context", "data", "pipeline"
  int64_t ranks = 1;  // of a group
  int64_t apart = 1;  // neighbours of a group, in rank
  std::string level;  // the outermost links that a group goes over
};
// Axes of more than one rank, innermost first.
std::vector<PlacedAxis> placement_of(const TrainingPlan& plan, const Interconnect& links);
std::string to_string(const std::vector<PlacedAxis>& placed);

// Throws Error for what the planner does not place: more devices than links join, figures of axes that a plan has not.
void check_links(const ClusterRequest& request);

}  // namespace shadowgraph
