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

  double min_bound(int32_t stages) const {
    double below = 0, bound = sums_.back();
    for (double middle = bound / 2; below < middle && middle < bound; middle = below + (bound - below) / 2) {
      const double kept = slowest_within(middle, stages);
      (kept <= middle ? bound : below) = kept <= middle ? kept : middle;
    }
    return bound;
  }

  // Returns the cuts within the bound that send the fewest bytes; among equal ones, those that balance the stages best.
  // The bound limits the stages before and after each cut, so that each cut is searched in a window.
  std::vector<int32_t> cheapest(int32_t stages, double bound) const {
    const double slack = bound * kSlack;
    std::vector<Sources> sources(1);
    Row row = first_row(stages, slack);
    for (int32_t s = 1; s < stages; ++s) {
      Row next = window(s, stages, slack);
      sources.push_back(extend(row, s, slack, next));
      row = std::move(next);
    }
    std::vector<int32_t> cuts;
    size_t j = sums_.size() - 1;
    for (size_t s = sources.size() - 1; s > 0; --s) {
      j = sources[s].from[j - sources[s].begin];
      cuts.push_back(places_[j].position);
    }
    std::ranges::reverse(cuts);
    return cuts;
  }

 private:
  static constexpr double kSlack = 1.01;
  struct Cost {
    int64_t bytes = std::numeric_limits<int64_t>::max();  // not reachable
    double squares = 0;
  };
  // The cheapest cost of ending a stage at each place of a window. The last place is the end of the forward.
  struct Row {
    size_t begin = 0;
    std::vector<Cost> best;
    size_t end() const { return begin + best.size(); }
    const Cost& of(size_t place) const { return best[place - begin]; }
  };
  // The previous cut, for each place of a window.
  struct Sources {
    size_t begin = 0;
    std::vector<uint32_t> from;
  };

  // Fills in the next row. `line` is a monotonic queue of candidate previous cuts, sorted by place and by bytes.
  Sources extend(const Row& before, int32_t stage, double slack, Row& row) const {
    Sources sources{row.begin, std::vector<uint32_t>(row.best.size(), 0)};
    std::vector<size_t> line;
    size_t head = 0, next = before.begin;
    const auto bytes = [&](size_t place) { return before.of(place).bytes; };
    for (size_t j = row.begin; j < row.end(); ++j) {
      for (; next < std::min(j, before.end()); ++next) {
        if (bytes(next) == Cost().bytes) continue;
        while (line.size() > head && bytes(line.back()) > bytes(next)) line.pop_back();
        line.push_back(next);
      }
      while (head < line.size() && sums_[j] - sums_[line[head]] > slack) ++head;
      if (head == line.size()) continue;
      const auto begin = line.begin() + static_cast<std::ptrdiff_t>(head);
      const auto end = std::partition_point(begin, line.end(), [&](size_t i) { return bytes(i) == bytes(*begin); });
      const double even = sums_[j] * stage / (stage + 1);
      auto at = std::partition_point(begin, end, [&](size_t i) { return sums_[i] < even; });
      if (at == end || (at != begin && squares(before, *(at - 1), j) < squares(before, *at, j))) --at;
      row.best[j - row.begin] = {bytes(*at) + sent(j), squares(before, *at, j)};
      sources.from[j - row.begin] = static_cast<uint32_t>(*at);
    }
    return sources;
  }
  double squares(const Row& before, size_t i, size_t j) const {
    return before.of(i).squares + (sums_[j] - sums_[i]) * (sums_[j] - sums_[i]);
  }

  int64_t sent(size_t place) const { return place < places_.size() ? places_[place].bytes : 0; }

  // Fills each stage up to the bound; returns the slowest stage, or infinity if that needs more stages.
  double slowest_within(double bound, int32_t stages) const {
    double slowest = 0, begin = 0;
    auto at = sums_.begin();
    for (int32_t s = 0; s < stages && at != sums_.end(); ++s) {
      const auto next = std::partition_point(at, sums_.end(), [&](double sum) { return sum - begin <= bound; });
      if (next == at) break;  // a single range exceeds the bound
      slowest = std::max(slowest, *(next - 1) - begin);
      begin = *(next - 1);
      at = next;
    }
    return at == sums_.end() ? slowest : std::numeric_limits<double>::infinity();
  }

  Row window(int32_t stage, int32_t stages, double slack) const {
    constexpr double kRounding = 1 + 1e-9;
    const double most = slack * kRounding * (stage + 1);
    const double least = sums_.back() - slack * kRounding * (stages - stage - 1);
    const auto first = std::ranges::lower_bound(sums_, least) - sums_.begin();
    const auto end = std::ranges::upper_bound(sums_, most) - sums_.begin();
    Row row;
    row.begin = std::max(static_cast<size_t>(first), static_cast<size_t>(stage));
    const size_t behind = std::min(static_cast<size_t>(end), sums_.size() - static_cast<size_t>(stages - stage - 1));
    row.best.resize(behind > row.begin ? behind - row.begin : 0);
    return row;
  }
  Row first_row(int32_t stages, double slack) const {
    Row row = window(0, stages, slack);
    for (size_t j = row.begin; j < row.end() && sums_[j] <= slack; ++j) {
      row.best[j - row.begin] = {sent(j), sums_[j] * sums_[j]};
    }
    return row;
  }

  std::span<const CutPlace> places_;
  std::vector<double> sums_;  // prefix sums of costs at each place, then the total
};

}  // namespace

double min_max_sum(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages) {
  return CutTable(costs, places).min_bound(stages);
}

std::vector<int32_t> balanced_cuts(std::span<const double> costs, std::span<const CutPlace> places, int32_t stages) {
  const CutTable table(costs, places);
  return table.cheapest(stages, table.min_bound(stages));
}

}  // namespace shadowgraph
