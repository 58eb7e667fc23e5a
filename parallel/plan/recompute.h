#pragma once

#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// Forward results that a layer keeps; the others are recomputed. "aten::mm#2" is the result of the third aten::mm.
using KeptResults = std::vector<std::string>;

// Returns up to six points on the layer's memory/time Pareto curve (rotor, shadowgraph/passes/recompute.h), largest
// first. Recompute costs include collectives. `rank`: graph of one device or rank without recompute.
std::vector<KeptResults> kept_result_options(const Graph& rank, const std::string& layer, const StageOptions& options);

// Returns the storages named by `kept` for each layer. Throws Error if a layer has no such result. Linear.
std::vector<std::vector<StorageId>> kept_storages(const Graph& rank, std::span<const RegionId> layers,
                                                  const KeptResults& kept);

// Rewrites the graph so that backward recomputes modules: `whole` ones entirely, `in_part` ones except the results the
// plan keeps. `selective` ones keep the results of matmuls with weights, convolutions, attention and recurrent layers,
// reduced over ranks; norms, activations, rotary embeddings and unfused attention scores are recomputed. all_gathers
// are always repeated. As in torch, kept tensors are freed after a module's backward. Throws Error for unknown modules.
void apply_recompute(Graph& rank, std::span<const std::string> whole, std::span<const std::string> selective,
                     std::span<const PartialRecompute> in_part = {});

// Offloads the activations of these modules to CPU between forward and backward. Throws Error for unknown modules.
void apply_offload(Graph& rank, std::span<const std::string> modules);

// Returns the recompute levels that a plan uses, such as "curve and full", or "none".
std::string recompute_summary(const TrainingPlan& plan);

}  // namespace shadowgraph
