// Finds the ways to keep a stage: what of it stays, what waits on the host, and what that costs.
//
// A stage of a transformer saves some ten to twenty tensors. The solver's time grows with the ways of a stage, so at
// most options.most_options are kept: those near the lower hull of cost over bytes. The greedy walks cost the square of
// the groups, times a walk over the stage.
#include <algorithm>
#include <cstdlib>

#include "passes/checkpoint/chain_builder.h"
#include "passes/checkpoint/checkpoint_plan.h"

namespace shadowgraph {

// What one node makes is kept together: computing one of its results gives the others, too.
std::vector<ChainBuilder::Storages> ChainBuilder::groups_of(size_t stage, const Storages& saved,
                                                            const Storages& handed_on) const {
  std::vector<Storages> groups;
  std::unordered_map<int32_t, size_t> by_maker;
  for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) {
    graph_.for_each_output(forward_[size_t(at)], [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (!saved.contains(s) || handed_on.contains(s) || lives_[s.index].born != at) return;
      const auto [entry, added] = by_maker.try_emplace(at, groups.size());
      if (added) groups.emplace_back();
      groups[entry->second].insert(s);
    });
  }
  return groups;
}

// Walks down from all groups, or up from none, one group a step, and notes each way that it comes by.
void ChainBuilder::walk_greedily(bool down, size_t stage, const Storages& saved, const Storages& handed_on,
                                 std::span<const Storages> groups, std::vector<Way>& ways) const {
  // Every set on the way is a candidate, not only the last.
  const auto note = [&](const Storages& kept) {
    ways.push_back({bytes_of(kept), cost_of(stage, saved, kept), kept});
    return ways.back().cost;
  };
  const auto changed = [&](Storages kept, const Storages& group) {
    if (!down) kept.insert(group.begin(), group.end());
    for (const StorageId s : group) {
      if (down) kept.erase(s);
    }
    return kept;
  };
  Storages kept = handed_on;
  if (down) {
    for (const Storages& group : groups) kept.insert(group.begin(), group.end());
  }
  int64_t cost = note(kept);
  std::vector<const Storages*> left;
  for (const Storages& group : groups) left.push_back(&group);
  while (!left.empty()) {
    size_t best = 0;
    double best_ratio = 0;
    for (size_t i = 0; i < left.size(); ++i) {
      const Storages next = changed(kept, *left[i]);
      const auto difference = static_cast<double>(std::abs(cost_of(stage, saved, next) - cost));
      const auto bytes = static_cast<double>(std::max<int64_t>(1, bytes_of(*left[i])));
      // Least cost for its bytes goes first; most cost for its bytes comes first.
      const double ratio = down ? bytes / (difference + 1) : (difference + 1) / bytes;
      if (i == 0 || ratio > best_ratio) best = i, best_ratio = ratio;
    }
    kept = changed(kept, *left[best]);
    cost = note(kept);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
  }
}

// Gives each way two more: one that sends to the host as much as computing hides, and one that sends all. A tensor that
// waits there costs no memory here and no computing, only what the link takes beyond the time of computing.
void ChainBuilder::send_to_host(size_t stage, int64_t backward, std::span<const Storages> groups,
                                std::vector<Way>& ways) const {
  int64_t running = 0;  // forward once, whatever is run again
  for (int32_t at = begin_of(stage); at < ends_[stage]; ++at) running += costs_[size_t(at)];
  std::vector<const Storages*> may_leave;
  for (const Storages& group : groups) {
    if (std::all_of(group.begin(), group.end(),
                    [&](StorageId s) { return host_trip(graph_, effects_, s).last_forward.valid(); })) {
      may_leave.push_back(&group);
    }
  }
  // Large tensors first: fewer copies for the same bytes.
  std::stable_sort(may_leave.begin(), may_leave.end(),
                   [&](const Storages* a, const Storages* b) { return bytes_of(*a) > bytes_of(*b); });
  const size_t here = ways.size();
  for (size_t i = 0; i < here; ++i) {
    for (const bool hidden : {true, false}) {
      Way sent = ways[i];
      int64_t bytes = 0;
      for (const Storages* group : may_leave) {
        if (!std::all_of(group->begin(), group->end(), [&](StorageId s) { return sent.kept.contains(s); })) continue;
        const int64_t more = bytes + bytes_of(*group);
        if (hidden && exposed_transfer(more, options_.link, running, backward) != 0) continue;
        bytes = more;
        sent.offloaded.insert(group->begin(), group->end());
      }
      if (bytes == 0) continue;
      sent.exposed = exposed_transfer(bytes, options_.link, running, backward);
      sent.bytes -= bytes;
      sent.cost += sent.exposed;
      ways.push_back(std::move(sent));
    }
  }
}

// Leaves the ways that no other beats in both cost and bytes, the cheapest first. `all` are the bytes of keeping all.
std::vector<ChainBuilder::Way> ChainBuilder::best_of(std::vector<Way> ways, int64_t all) const {
  std::stable_sort(ways.begin(), ways.end(),
                   [](const Way& a, const Way& b) { return a.cost != b.cost ? a.cost < b.cost : a.bytes < b.bytes; });
  std::vector<Way> front;
  for (Way& way : ways) {
    if ((way.cost > 0 || !way.offloaded.empty()) && way.bytes < (front.empty() ? all : front.back().bytes)) {
      front.push_back(std::move(way));
    }
  }
  // The one between two others that is least below the line through them goes, while there are too many.
  while (static_cast<int64_t>(front.size()) > std::max<int64_t>(1, options_.most_options - 1)) {
    size_t least = 0;
    double least_loss = 0;
    for (size_t i = 0; i + 1 < front.size(); ++i) {  // the last keeps nothing, and stays
      const double from_bytes = static_cast<double>(i == 0 ? all : front[i - 1].bytes);
      const double from_cost = static_cast<double>(i == 0 ? 0 : front[i - 1].cost);
      const double loss =
          (from_bytes - static_cast<double>(front[i].bytes)) * (static_cast<double>(front[i + 1].cost) - from_cost);
      if (i == 0 || loss < least_loss) least = i, least_loss = loss;
    }
    front.erase(front.begin() + static_cast<std::ptrdiff_t>(least));
  }
  return front;
}

// Finds ways to keep a part of what backward reads. There are 2^n sets; two greedy walks find those that matter, one
// dropping from all, one adding to none.
void ChainBuilder::find_options(size_t stage, const Storages& saved, const Storages& handed_on, ChainStage& result,
                                CheckpointStage& part) const {
  const std::vector<Storages> groups = groups_of(stage, saved, handed_on);
  std::vector<Way> ways;
  for (const bool down : {true, false}) walk_greedily(down, stage, saved, handed_on, groups, ways);
  if (options_.link > 0) send_to_host(stage, result.backward, groups, ways);
  const auto listed = [](const Storages& storages) {
    std::vector<StorageId> list(storages.begin(), storages.end());
    std::sort(list.begin(), list.end());
    return list;
  };
  for (const Way& way : best_of(std::move(ways), result.options[0].saved)) {
    result.options.push_back({.saved = way.bytes, .cost = way.cost, .offloaded = bytes_of(way.offloaded)});
    part.keep.push_back(listed(way.kept));
    part.offload.push_back(listed(way.offloaded));
    part.exposed.push_back(way.exposed);
  }
}

}  // namespace shadowgraph
