#include "sharding/solver/usage.h"

#include <algorithm>
#include <bit>
#include <map>

namespace shadowgraph {

UsageTree::UsageTree(size_t points) {
  if (points == 0) return;
  size_ = std::bit_ceil(static_cast<uint32_t>(points));
  most_.resize(size_t{2} * size_, 0);
  added_.resize(size_t{2} * size_, 0);
}

void UsageTree::add(uint32_t begin, uint32_t end, double amount) {
  if (begin >= end || amount == 0) return;
  const uint32_t first = begin + size_;
  const uint32_t last = end - 1 + size_;
  for (uint32_t l = first, r = last + 1; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) {
      added_[l] += amount;
      most_[l++] += amount;
    }
    if (r % 2 == 1) {
      added_[--r] += amount;
      most_[r] += amount;
    }
  }
  for (uint32_t node = first / 2; node > 0; node /= 2) {
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
  for (uint32_t node = last / 2; node > 0; node /= 2) {
    most_[node] = std::max(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
}

uint32_t UsageTree::highest_at() const {
  uint32_t node = 1;
  while (node < size_) node = 2 * node + (most_[2 * node] >= most_[2 * node + 1] ? 0 : 1);
  return size_ == 0 ? 0 : node - size_;
}

double UsageTree::highest(uint32_t begin, uint32_t end) const {
  // Amounts added above a node of the tree count for it too.
  double best = -kInfinite;
  const auto look = [&](uint32_t node) {
    double most = most_[node];
    for (uint32_t above = node / 2; above > 0; above /= 2) most += added_[above];
    best = std::max(best, most);
  };
  for (uint32_t l = begin + size_, r = end + size_; l < r; l /= 2, r /= 2) {
    if (l % 2 == 1) look(l++);
    if (r % 2 == 1) look(--r);
  }
  return best;
}

UsageModel::UsageModel(const AssignmentProblem& problem, const PairwiseModel& model)
    : items_(model.size()), limit_(static_cast<double>(problem.usage_limit)) {
  const auto uses = [](const AssignmentNode& node) {
    return std::any_of(node.usages.begin(), node.usages.end(), [](int64_t x) { return x > 0; });
  };
  std::vector<int64_t> begins;
  std::vector<int64_t> ends;
  for (const AssignmentNode& node : problem.nodes) {
    if (!uses(node)) continue;
    for (const LiveInterval& interval : node.live) {
      begins.push_back(interval.begin);
      ends.push_back(interval.end);
    }
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  std::sort(ends.begin(), ends.end());
  // The last begin before anything ends.
  for (size_t i = 0; i < begins.size(); ++i) {
    const auto end = std::upper_bound(ends.begin(), ends.end(), begins[i]);
    if (i + 1 == begins.size() || (end != ends.end() && *end <= begins[i + 1])) times_.push_back(begins[i]);
  }
  for (uint32_t v = 0; v < model.size(); ++v) {
    if (!model.is_left(v)) continue;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<double>> items;
    for (const PairwiseModel::Member& member : model.members(v)) {
      const AssignmentNode& node = problem.nodes[member.node];
      if (!uses(node)) continue;
      for (const LiveInterval& interval : node.live) {
        const auto point = [&](int64_t time) {
          return static_cast<uint32_t>(std::lower_bound(times_.begin(), times_.end(), time) - times_.begin());
        };
        std::vector<double>& bytes = items[{point(interval.begin), point(interval.end)}];
        bytes.resize(model.states(v), 0);
        for (size_t s = 0; s < bytes.size(); ++s) {
          bytes[s] += static_cast<double>(node.usages[member.strategy[s]]) * static_cast<double>(interval.count);
        }
      }
    }
    for (auto& [range, bytes] : items) {
      if (range.first < range.second) {
        items_[v].push_back({.begin = range.first, .end = range.second, .bytes = std::move(bytes)});
      }
    }
  }
}

void UsageModel::restrict_to(uint32_t v, const std::vector<uint32_t>& keep) {
  for (UsageItem& item : items_[v]) {
    for (size_t i = 0; i < keep.size(); ++i) item.bytes[i] = item.bytes[keep[i]];
    item.bytes.resize(keep.size());
  }
}

std::vector<double> UsageModel::profile(std::span<const uint32_t> states) const {
  std::vector<double> change(points() + 1, 0);
  for (uint32_t v = 0; v < items_.size(); ++v) {
    for (const UsageItem& item : items_[v]) {
      change[item.begin] += item.bytes[states[v]];
      change[item.end] -= item.bytes[states[v]];
    }
  }
  change.pop_back();
  double sum = 0;
  for (double& amount : change) amount = sum += amount;
  return change;
}

void UsageModel::move(UsageTree& tree, uint32_t v, uint32_t from, uint32_t to) const {
  for (const UsageItem& item : items_[v]) tree.add(item.begin, item.end, item.bytes[to] - item.bytes[from]);
}

UsageTree UsageModel::tree(std::span<const uint32_t> states) const {
  UsageTree tree(points());
  for (uint32_t v = 0; v < items_.size(); ++v) {
    for (const UsageItem& item : items_[v]) tree.add(item.begin, item.end, item.bytes[states[v]]);
  }
  return tree;
}

void UsageModel::add_price(uint32_t v, std::span<const double> sums, std::vector<double>& costs) const {
  for (const UsageItem& item : items_[v]) {
    const double price = sums[item.end] - sums[item.begin];
    if (price == 0) continue;
    for (size_t s = 0; s < costs.size(); ++s) costs[s] += price * item.bytes[s];
  }
}

}  // namespace shadowgraph
