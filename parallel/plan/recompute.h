// Ways to keep a part of a layer, by rotor's curve (shadowgraph/passes/recompute.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// What is kept of a layer of its forward's results: "aten::mm#2" is the third one's of that operator.
using KeptResults = std::vector<std::string>;

// Those worth their seconds in this layer, most kept first; at most six. What is computed again costs its seconds, and
// those of collectives. `rank`: of one device or one rank, in which backward computes nothing again.
std::vector<KeptResults> kept_result_options(const Graph& rank, const std::string& layer, const StageOptions& options);

// The storages of each layer that a way names. Throws Error for a result that a layer has not. Linear.
std::vector<std::vector<StorageId>> kept_storages(const Graph& rank, std::span<const RegionId> layers,
                                                  const KeptResults& way);

// What layers keep for backward in the program of a rank: in part, nothing, on the host.
// Backward computes modules again: some whole, some but for what the plan keeps. The selective ones keep what products
// with weights, convolutions, attention and recurrent layers give, or its sum over ranks. So norms, activations, rotations
// and scores of attention by hand run twice. What ranks gather is gathered twice in all of them.
// As in torch, all that is kept is held until the module's backward is through. Throws Error for unknown modules.
void apply_recompute(Graph& rank, std::span<const std::string> whole, std::span<const std::string> selective,
                     std::span<const PartlyKept> in_part = {});

// What these modules keep then waits for backward on the host. Throws Error for unknown ones.
void apply_offload(Graph& rank, std::span<const std::string> modules);

// "nothing", or what there is of "selective", "curve" and "whole": "curve and whole".
std::string recompute_summary(const TrainingPlan& plan);

}  // namespace shadowgraph
