// The kinds of collectives, whichever library calls them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kSend,
  kReceive,
  kBarrier,
};
constexpr int kCollectiveKindCount = static_cast<int>(CollectiveKind::kBarrier) + 1;
std::string_view to_string(CollectiveKind kind);  // "all_reduce", "all_gather", ...
std::optional<CollectiveKind> parse_collective_kind(std::string_view word);

}  // namespace shadowgraph
