// Ways to keep a part of a layer, by rotor's curve (shadowgraph/passes/checkpoint_curve.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/parallel/stages.h"

namespace shadowgraph {

// What is kept of a layer of its forward's results: "aten::mm#2" is the third one's of that operator.
using LayerWay = std::vector<std::string>;

// Those worth their seconds in this layer, most kept first; at most six. What is computed again costs its seconds, and
// those of collectives. `rank`: of one device or one rank, in which backward computes nothing again.
std::vector<LayerWay> ways_to_keep(const Graph& rank, const std::string& layer, const StageOptions& options);

// The storages of each layer that a way names. Throws Error for a result that a layer has not. Linear.
std::vector<std::vector<StorageId>> kept_by(const Graph& rank, std::span<const RegionId> layers, const LayerWay& way);

}  // namespace shadowgraph
