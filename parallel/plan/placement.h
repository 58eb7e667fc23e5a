// Which links each axis of a plan goes over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

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
