// Judges a plan that is measured already.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/problem.h"
#include "shadowgraph/sharding/shard.h"

namespace shadowgraph {

ShardingVerdict verdict_of(const Graph& graph, const ShardingOptions& sharding, const ShardingAnswer& answer);

// The lines below the title; each ends with a newline.
std::string text_of_verdict(const ShardingAnswer& answer);
nlohmann::json json_of_verdict(const ShardingVerdict& verdict);

}  // namespace shadowgraph
