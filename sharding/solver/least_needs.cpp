#include "sharding/solver/least_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "shadowgraph/units.h"

namespace shadowgraph {

namespace {

using Wide = AssignmentCost::Wide;
using Used = std::pair<Wide, std::string>;

std::string words(std::vector<Used> alive) {
  std::stable_sort(alive.begin(), alive.end(), [](const Used& a, const Used& b) { return a.first > b.first; });
  constexpr size_t kNamed = 5;
  std::string most;
  for (size_t i = 0; i < alive.size() && i < kNamed; ++i) {
    most += fmt::format("{}{} ({})", most.empty() ? "" : ", ", alive[i].second,
                        human_bytes(static_cast<int64_t>(alive[i].first)));
  }
  if (alive.size() > kNamed) most += fmt::format(" and {} more", alive.size() - kNamed);
  return most;
}

int64_t count_at(std::span<const LiveInterval> live, int64_t time) {
  const auto holds = [&](const LiveInterval& x) { return x.begin <= time && time < x.end; };
  const auto found = std::find_if(live.begin(), live.end(), holds);
  return found == live.end() ? 0 : found->count;
}

}  // namespace

LeastNeeds::LeastNeeds(const AssignmentProblem& problem) : problem_(problem) {
  std::map<int64_t, Wide> changes;
  std::vector<int64_t> needs(problem.nodes.size(), 0);
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.usages.empty()) continue;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t s = 0; s < node.costs.size(); ++s) {
      const bool may = node.pinned < 0 || static_cast<int64_t>(s) == node.pinned;
      if (may && node.costs[s] != kForbidden) least = std::min(least, node.usages[s]);
    }
    if (least == std::numeric_limits<int64_t>::max()) continue;  // no strategy at all is another reason
    needs[i] = least;
    for (const LiveInterval& interval : node.live) {
      changes[interval.begin] += Wide{least} * interval.count;
      changes[interval.end] -= Wide{least} * interval.count;
    }
  }
  Wide usage = 0;
  for (const auto& [time, change] : changes) {
    usage += change;
    if (usage <= peak_) continue;
    peak_ = usage;
    at_ = time;
  }
  std::vector<Used> alive;
  for (size_t i = 0; i < needs.size(); ++i) {
    const Wide used = Wide{needs[i]} * count_at(problem.nodes[i].live, at_);
    if (used > 0) alive.emplace_back(used, problem.nodes[i].name);
  }
  most_ = words(std::move(alive));
}

bool LeastNeeds::exceed_limit() const { return peak_ > problem_.usage_limit; }

std::string LeastNeeds::to_text(bool shown) const {
  if (problem_.usage_limit == kNoLimit) return shown ? "No choice is allowed" : "None was found in the time";
  const std::string together = human_bytes(static_cast<int64_t>(peak_));
  const std::string limit = human_bytes(problem_.usage_limit);
  if (exceed_limit()) {
    return fmt::format("At point {} the least that each needs is {} together, where {} are allowed; the most of it: {}",
                       at_, together, limit, most_);
  }
  return fmt::format("{}; the least that each needs by itself is {} at point {}, of {}; the most of it: {}",
                     shown ? "None exists: states that fit next to the least of all others do not fit each other"
                           : "None was found at any prices of usages",
                     together, at_, limit, most_);
}

std::string most_used_at(const AssignmentProblem& problem, std::span<const uint32_t> choice, int64_t time) {
  std::vector<Used> alive;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const AssignmentNode& node = problem.nodes[i];
    if (node.usages.empty()) continue;
    const Wide used = Wide{node.usages[choice[i]]} * count_at(node.live, time);
    if (used > 0) alive.emplace_back(used, node.name);
  }
  for (const AssignmentEdge& edge : problem.edges) {
    const CostMatrix& matrix = problem.matrices[edge.matrix];
    if (matrix.usages.empty()) continue;
    const Wide used =
        Wide{matrix.usages[size_t{choice[edge.a]} * matrix.columns + choice[edge.b]]} * count_at(edge.live, time);
    if (used > 0) {
      alive.emplace_back(used,
                         fmt::format("{} as {} takes it", problem.nodes[edge.a].name, problem.nodes[edge.b].name));
    }
  }
  return words(std::move(alive));
}

}  // namespace shadowgraph
