#include "shadowgraph/profile/collective_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/profile/interconnect.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {
namespace {

constexpr std::array<std::string_view, kCollectiveKindCount> kKindNames = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce",
    "gather",     "scatter",    "send",           "receive",    "barrier"};

// Returns (n - 1) / n of the bytes, rounded up.
int64_t all_but_own(int64_t bytes, int64_t n) {
  const int64_t whole = bytes / n;
  const int64_t rest = bytes % n;
  return whole * (n - 1) + (rest * (n - 1) + n - 1) / n;
}

// Returns what `processes` of a block of a level reach each other by.
LinkGroup reached_by(const LinkLevel& level, int64_t processes) {
  LinkGroup reached{.processes = level.size, .bandwidth = level.bandwidth, .direct = level.direct};
  if (level.groups.empty() || (level.size > 0 && processes >= level.size)) return reached;
  for (const LinkGroup& group : level.groups) {
    if (group.processes <= processes) reached = group;
  }
  return reached;
}

// The processes of a group, in order.
std::vector<int64_t> ranks_of(const ProcessGroupInfo& group) {
  std::vector<int64_t> ranks = group.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(group.size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::ranges::sort(ranks);
  return ranks;
}

// Counts blocks of a level that have one of the processes, which are in order.
int64_t blocks_with(const std::vector<int64_t>& ranks, const LinkLevel& level) {
  int64_t blocks = 0, behind = 0;  // behind: where the block at hand ends
  for (const int64_t rank : ranks) {
    if (blocks > 0 && rank < behind) continue;
    behind = (rank / level.size + 1) * level.size;
    ++blocks;
  }
  return blocks;
}

// Says how a group lies on the levels. Level l has blocks(l) blocks with a process of the group in them; below the
// first level each process is its own block.
class Span {
 public:
  Span(const ProcessGroupInfo& group, const Interconnect& links) {
    const std::vector<int64_t> ranks = ranks_of(group);
    const auto axis = links.axes.find(group.axis.empty() ? group.name : group.axis);
    const AxisLinks* own = axis == links.axes.end() ? nullptr : &axis->second;
    int64_t below = group.size;
    for (const LinkLevel& level : links.levels) {
      const bool is_last = level.size <= 0 || &level == &links.levels.back();
      const int64_t blocks = is_last ? 1 : blocks_with(ranks, level);
      if (blocks < below) {
        const LinkGroup reached = reached_by(level, (group.size + blocks - 1) / blocks);
        used_.push_back({.hops = below - blocks,
                         .fan = (below + blocks - 1) / blocks,
                         .latency = level.latency,
                         .bandwidth = reached.bandwidth,
                         .direct = reached.direct > 0 ? reached.direct : reached.bandwidth,
                         .processes = group.size / below,
                         .chain = &level == &links.levels.front()});
      }
      below = blocks;
      if (blocks == 1) break;
    }
    if (own != nullptr && own->latency && own->bandwidth) {
      used_ = {{.hops = group.size - 1, .fan = group.size, .latency = 0, .bandwidth = 1, .direct = 1, .processes = 1}};
    }
    for (Used& used : used_) {
      if (own == nullptr) break;
      if (own->latency) used.latency = *own->latency;
      if (own->bandwidth) {
        used.bandwidth = used.direct = *own->bandwidth;
        used.processes = 1;
      }
    }
  }

  double ring_latency() const {
    double seconds = 0;
    for (const Used& used : used_) seconds += static_cast<double>(used.hops) * used.latency;
    return seconds;
  }
  // Returns the latency up, or down: a chain through each innermost block, binary trees above.
  double tree_latency() const {
    double seconds = 0;
    for (const Used& used : used_) {
      const double depth = used.chain ? static_cast<double>(used.fan - 1) : std::ceil(std::log2(used.fan));
      seconds += depth * used.latency;
    }
    return seconds;
  }
  double ring_bandwidth() const {
    double bandwidth = HUGE_VAL;
    for (const Used& used : used_) {
      bandwidth = std::min(bandwidth, used.bandwidth * static_cast<double>(std::max<int64_t>(used.processes, 1)));
    }
    return bandwidth;
  }
  // Returns seconds for a byte of the payload. Each process sends to each other one by the links of their level, all
  // levels at once.
  double direct_seconds_a_byte(int64_t n) const {
    double seconds = 0;
    int64_t inside = 1;  // processes of the group in a block of the level below
    for (const Used& used : used_) {
      const int64_t here = std::min(n, inside * used.fan);
      seconds = std::max(seconds, static_cast<double>(here - inside) / static_cast<double>(n) / used.direct);
      inside = here;
    }
    return seconds;
  }

 private:
  struct Used {
    int64_t hops = 0;  // from block to block, in a ring through all
    int64_t fan = 0;   // blocks of the level below in one of this, at most
    double latency = 0;
    double bandwidth = 0;
    double direct = 0;
    int64_t processes = 1;  // in a block of the level below: links that leave it
    bool chain = false;     // of a tree, inside
  };
  std::vector<Used> used_;
};

double interpolate(const CollectiveTable& table, double bytes) {
  if (bytes <= table.front().first) return table.front().second;
  if (table.size() == 1) return table.front().second * bytes / table.front().first;
  auto above = std::upper_bound(table.begin(), table.end(), bytes,
                                [](double value, const auto& point) { return value < point.first; });
  if (above == table.end()) --above;
  const auto below = std::prev(above);
  const double slope = (above->second - below->second) / (above->first - below->first);
  return below->second + slope * (bytes - below->first);
}

// Says whether a group lies in as few blocks of each level as it can.
bool is_compact(const ProcessGroupInfo& group, const Interconnect& links) {
  if (group.ranks.empty()) return true;
  return std::ranges::all_of(links.levels, [&, ranks = ranks_of(group)](const LinkLevel& level) {
    return level.size == 0 || blocks_with(ranks, level) <= (group.size + level.size - 1) / level.size;
  });
}

const CollectiveTable* table_for(CollectiveKind kind, const ProcessGroupInfo& group, const Interconnect& links) {
  const auto axis = links.axes.find(group.axis.empty() ? group.name : group.axis);
  if (axis != links.axes.end()) {
    const auto table = axis->second.tables.find(kind);
    if (table != axis->second.tables.end() && !table->second.empty()) return &table->second;
  }
  const auto by_size = links.tables.find(kind);
  if (by_size == links.tables.end() || !is_compact(group, links)) return nullptr;
  const auto table = by_size->second.find(group.size);
  return table == by_size->second.end() || table->second.empty() ? nullptr : &table->second;
}

// Returns what the links between this process and its peer alone take.
CollectiveCost between_two(int64_t payload, const ProcessGroupInfo& group, const Interconnect& links, int64_t peer) {
  if (peer < 0) peer = (group.rank + 1) % group.size;
  const auto rank_of = [&](int64_t place) {
    return group.ranks.empty() ? place : group.ranks[static_cast<size_t>(place) % group.ranks.size()];
  };
  const ProcessGroupInfo pair{
      .name = group.name, .size = 2, .rank = 0, .ranks = {rank_of(group.rank), rank_of(peer)}, .axis = group.axis};
  const Span span(pair, links);
  return {.wire = payload,
          .latency = links.base + span.ring_latency(),
          .transfer = static_cast<double>(payload) / span.ring_bandwidth(),
          .algorithm = CollectiveAlgorithm::kDirect};
}

}  // namespace

std::string_view to_string(CollectiveKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::optional<CollectiveKind> parse_collective_kind(std::string_view word) {
  const auto found = std::ranges::find(kKindNames, word);
  if (found == kKindNames.end()) return std::nullopt;
  return static_cast<CollectiveKind>(found - kKindNames.begin());
}

std::string_view to_string(CollectiveAlgorithm algorithm) {
  constexpr std::array<std::string_view, 5> kNames = {"none", "ring", "tree", "direct", "table"};
  return kNames[static_cast<size_t>(algorithm)];
}

int64_t wire_bytes(CollectiveKind kind, int64_t payload, int64_t processes) {
  if (processes <= 1) return 0;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return saturating_add(all_but_own(payload, processes), all_but_own(payload, processes));
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter:
      return all_but_own(payload, processes);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      return payload;
    case CollectiveKind::kBarrier:
      return 0;
  }
  return 0;
}

CollectiveCost collective_cost(CollectiveKind kind, int64_t payload, const ProcessGroupInfo& group,
                               const Interconnect& links, int64_t peer) {
  const int64_t n = group.size;
  if (n <= 1) return {};
  CollectiveCost cost{.wire = wire_bytes(kind, payload, n)};
  if (const CollectiveTable* table = table_for(kind, group, links)) {
    cost.latency = interpolate(*table, static_cast<double>(payload));
    cost.algorithm = CollectiveAlgorithm::kTable;
    return cost;
  }
  if (kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive)
    return between_two(payload, group, links, peer);
  const Span span(group, links);
  const double ring = links.base + span.ring_latency();
  const auto wire = static_cast<double>(cost.wire);
  cost.algorithm = CollectiveAlgorithm::kRing;
  cost.latency = ring;
  // A ring is empty at first: so much of a step more than its own. What one process sends or collects is no ring.
  const bool round = kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kAllGather ||
                     kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
  const auto steps = static_cast<double>(kind == CollectiveKind::kAllReduce ? 2 * (n - 1) : n - 1);
  const double filled = round ? 1 + links.ring_fill / steps : 1;
  cost.transfer = filled * wire / span.ring_bandwidth();
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter) {
    cost.algorithm = CollectiveAlgorithm::kDirect;
    cost.transfer = filled * static_cast<double>(payload) * span.direct_seconds_a_byte(n);
  } else if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBarrier) {
    cost.latency += span.ring_latency();
    CollectiveCost tree{.wire = saturating_add(payload, payload),
                        .latency = links.base + 2 * span.tree_latency(),
                        .algorithm = CollectiveAlgorithm::kTree};
    if (kind == CollectiveKind::kBarrier) tree.wire = 0;
    tree.transfer = static_cast<double>(tree.wire) / span.ring_bandwidth();
    if (tree.seconds() < cost.seconds()) return tree;
  }
  return cost;
}

}  // namespace shadowgraph
