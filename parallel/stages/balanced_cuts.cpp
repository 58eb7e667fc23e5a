#include "parallel/stages/balanced_cuts.h"

#include <algorithm>
#include <limits>

namespace shadowgraph {
namespace {

class CutTable {
 public:
  CutTable(std::span<const double> costs, std::span<const CutPlace> places) : places_(places) {
    std::vector<double> before(costs.size() + 1, 0);
    for (size_t i = 0; i < costs.size(); ++i) before[i + 1] = before[i] + costs[i];
    for (const CutPlace& place : places) sums_.push_back(before[static_cast<size_t>(place.position)]);
    sums_.push_back(before.back());
  }

  // The least bound that some cuts keep: each stage takes as much as it may.
  double least_bound(int32_t stages) const {
    // best[j]: the slowest of the stages up to the cut at place j; the end is the place behind all.
    std::vector<double> best(sums_.begin(), sums_.end());
    for (int32_t s = 1; s < stages; ++s) {
      std::vector<double> next(sums_.size(), std::numeric_limits<double>::infinity());
      for (size_t j = static_cast<size_t>(s); j < sums_.size(); ++j) {
        for (size_t i = j; i-- > static_cast<size_t>(s) - 1;) {
          const double here = sums_[j] - sums_[i];
          next[j] = std::min(next[j], std::max(best[i], here));
          if (here >= next[j]) break;  // an earlier cut makes this stage slower
        }
      }
      best = std::move(next);
    }
    return best.back();
  }

  // The cuts within that bound that send least; among these the evenest.
  std::vector<int32_t> cheapest(int32_t stages, double bound) const {
    const double slack = bound * kSlack;
    const size_t count = sums_.size();
    std::vector<std::vector<uint32_t>> from(static_cast<size_t>(stages), std::vector<uint32_t>(count, 0));
    std::vector<Cost> best(count);
    for (size_t j = 0; j < count && sums_[j] <= slack; ++j) best[j] = {sent(j), sums_[j] * sums_[j]};
    for (int32_t s = 1; s < stages; ++s) {
      std::vector<Cost> next(count);
      for (size_t j = static_cast<size_t>(s); j < count; ++j) {
        for (size_t i = j; i-- > static_cast<size_t>(s) - 1 && sums_[j] - sums_[i] <= slack;) {
          if (best[i].bytes == Cost().bytes) continue;
          const double here = sums_[j] - sums_[i];
          const Cost cost{best[i].bytes + sent(j), best[i].squares + here * here};
          if (!(cost < next[j])) continue;
          next[j] = cost;
          from[static_cast<size_t>(s)][j] = static_cast<uint32_t>(i);
        }
      }
      best = std::move(next);
    }
    std::vector<int32_t> cuts;
    size_t j = count - 1;
    for (int32_t s = stages - 1; s > 0; --s) {
      j = from[static_cast<size_t>(s)][j];
      cuts.push_back(places_[j].position);
    }
    std::ranges::reverse(cuts);
    return cuts;
  }

 private:
  static constexpr double kSlack = 1.01;
  struct Cost {
    int64_t bytes = std::numeric_limits<int64_t>::max();  // nothing found
    double squares = 0;
    friend bool operator<(const Cost& a, const Cost& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.squares < b.squares;
    }
  };
  int64_t sent(size_t place) const { return place < places_.size() ? places_[place].bytes : 0; }

  std::span<const CutPlace> places_;
  std::vector<double> sums_;  // of costs before each place, then of all
};

}  // namespace

double least_greatest_sum(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages) {
  return CutTable(costs, places).least_bound(stages);
}

std::vector<int32_t> balanced_cuts(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages) {
  const CutTable table(costs, places);
  return table.cheapest(stages, table.least_bound(stages));
}

}  // namespace shadowgraph
