// What was tried with sharding and computing again, as text and JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>

#include "shadowgraph/sharding/shard_and_recompute.h"

namespace shadowgraph {

// A table of the rounds; `memory` is what a device had, in bytes.
std::string text_of_rounds(std::span<const RecomputeRound> rounds, int64_t memory);
// {"rounds": [...], "segments": [...]}.
nlohmann::json json_of_rounds(std::span<const RecomputeRound> rounds, std::span<const CheckpointSegment> segments);

}  // namespace shadowgraph
