// One plan of several: what stays the same between them is kept.
#pragma once

#include <optional>
#include <string>

#include "parallel/plan/candidate.h"
#include "parallel/plan/layer_tables.h"
#include "parallel/plan/plan_space.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

// Nothing is simulated in the answer where nothing fits. Throws Error for requests that make no sense.
PlanAnswer try_plan(const StepSource& source, const ClusterRequest& request, KeptTables& kept, bool neighbours);

// The first plan by its bound that fits into `memory` bytes by the figures of layers.
struct FittingPlan {
  TrainingPlan plan;
  Estimate estimate;
};
std::optional<FittingPlan> first_that_fits(const StepSource& source, const ClusterRequest& request, KeptTables& kept,
                                           int64_t memory);

// One rank's graph of a micro-batch on its part of each sequence, in the precision that is asked for. Tensor parallel is
// as Megatron lays it out, where that can be. Experts are whole, nothing is computed again. `layers`: as StepSize has it.
Graph rank_of_step(const StepSource& source, int64_t layers, const LayoutSizes& sizes, const ClusterRequest& request);
// How many layers are captured in place of all; 0: all are.
int64_t layers_that_stand_for_all(const StepSource& source);
// The same step on a rank's part of each sequence. Throws Error if its source makes no shorter ones, or for tokens that do
// not divide.
StepSource part_of_sequence(const StepSource& source, const ClusterRequest& request, int64_t context);
// Throws Error if a step cannot be cut so, of which `part` is on a rank's tokens.
void check_sequence_parts(const Graph& whole, const Graph& part, int64_t context);

// Bytes that a rank may reserve. Throws NoTrainingPlanError for devices without room for a program.
int64_t memory_of(const ClusterRequest& request);
// What a process takes of a device beside its tensors: the context, and buffers of NCCL.
int64_t beside_program(const DeviceSpec& device);

}  // namespace shadowgraph
