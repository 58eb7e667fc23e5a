// Assigns arena offsets to storages with known lifetimes. This is dynamic storage allocation, which is NP-hard, so
// several planners run and the smallest arena wins. Most of the gap to the lower bound is at the boundary of forward
// and backward: activations nest there (first allocated, last freed), and temporaries between them leave holes; hence
// the planner that fills the arena from both ends.
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>

#include "profiler/memory/allocation_order.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph {
namespace {

enum class Fit : uint8_t { kLowest, kTightest };

// Allocates space from the bottom up and tracks the gaps between allocations.
class Arena {
 public:
  explicit Arena(Fit fit) : fit_(fit) {}

  int64_t take(int64_t bytes) {
    const auto found = fit_ == Fit::kLowest ? lowest(bytes) : tightest(bytes);
    if (found == gaps_.end()) {
      const int64_t offset = extent_;
      extent_ += bytes;
      return offset;
    }
    const auto [offset, size] = *found;
    drop(found);
    if (size > bytes) put(offset + bytes, size - bytes);
    return offset;
  }

  void give(int64_t offset, int64_t bytes) {
    auto next = gaps_.lower_bound(offset);
    if (next != gaps_.end() && next->first == offset + bytes) {
      bytes += next->second;
      const auto old = next++;
      drop(old);
    }
    if (next != gaps_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        drop(before);
      }
    }
    if (offset + bytes == extent_) {
      extent_ = offset;
    } else {
      put(offset, bytes);
    }
  }

  int64_t extent() const { return extent_; }  // end of the highest allocation

 private:
  using Gaps = std::map<int64_t, int64_t>;  // size by offset
  static size_t power(int64_t size) { return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(size)) - 1); }

  void put(int64_t offset, int64_t size) {
    gaps_.emplace(offset, size);
    fit_ == Fit::kLowest ? (void)by_power_[power(size)].insert(offset) : (void)by_size_.emplace(size, offset);
  }
  void drop(Gaps::iterator gap) {
    const auto [offset, size] = *gap;
    fit_ == Fit::kLowest ? (void)by_power_[power(size)].erase(offset) : (void)by_size_.erase({size, offset});
    gaps_.erase(gap);
  }
  Gaps::iterator tightest(int64_t bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    return found == by_size_.end() ? gaps_.end() : gaps_.find(found->second);
  }
  // Takes the lowest of the gaps known to be large enough, and of the first few that may be.
  Gaps::iterator lowest(int64_t bytes) {
    constexpr int kTried = 32;
    auto best = gaps_.end();
    const size_t own = power(bytes);
    int tried = 0;
    for (const int64_t offset : by_power_[own]) {
      if (tried++ == kTried) break;
      const auto gap = gaps_.find(offset);
      if (gap->second >= bytes) {
        best = gap;
        break;
      }
    }
    for (size_t i = own + 1; i < by_power_.size(); ++i) {
      if (by_power_[i].empty()) continue;
      const int64_t offset = *by_power_[i].begin();
      if (best == gaps_.end() || offset < best->first) best = gaps_.find(offset);
    }
    return best;
  }

  Fit fit_;
  Gaps gaps_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // kTightest: size, offset
  std::array<std::set<int64_t>, 64> by_power_;     // kLowest: offsets of gaps of 2^i bytes and more
  int64_t extent_ = 0;
};

class Planner {
 public:
  Planner(const std::vector<AllocationLifetime>& requests, int64_t alignment) : requests_(requests) {
    for (uint32_t i = 0; i < requests.size(); ++i) {
      const AllocationLifetime& request = requests[i];
      if (request.born > request.last)
        throw Error("memory_layout: invalid lifetime: a request is freed before it is allocated");
      if (request.bytes < 0) throw Error("memory_layout: invalid size: a request has negative bytes");
      size_.push_back((request.bytes + alignment - 1) / alignment * alignment);
      steps_ = std::max(steps_, request.last + 1);
      if (request.bytes > 0) by_allocation_.push_back(i);
    }
    by_free_ = by_allocation_;
    std::stable_sort(by_allocation_.begin(), by_allocation_.end(),
                     [&](uint32_t a, uint32_t b) { return requests[a].born < requests[b].born; });
    std::stable_sort(by_free_.begin(), by_free_.end(),
                     [&](uint32_t a, uint32_t b) { return requests[a].last < requests[b].last; });
  }

  int64_t bound() const {
    int64_t most = 0, now = 0;
    walk([&](uint32_t i) { most = std::max(most, now += size_[i]); }, [&](uint32_t i) { now -= size_[i]; });
    return most;
  }

  // Places each storage when it is allocated.
  ArenaLayout one_end(Fit fit, std::string name) const {
    ArenaLayout plan{.offsets = std::vector<int64_t>(size_.size(), 0), .planner = std::move(name)};
    Arena arena(fit);
    walk(
        [&](uint32_t i) {
          plan.offsets[i] = arena.take(size_[i]);
          plan.bytes = std::max(plan.bytes, arena.extent());
        },
        [&](uint32_t i) { arena.give(plan.offsets[i], size_[i]); });
    return plan;
  }

  // Places storages with a lifetime longer than `life` steps from the bottom, the others from the top.
  ArenaLayout two_ends(uint32_t life, std::string name) const {
    ArenaLayout plan{.offsets = std::vector<int64_t>(size_.size(), 0), .planner = std::move(name)};
    Arena low(Fit::kLowest);
    Arena high(Fit::kLowest);
    const auto is_low = [&](uint32_t i) { return requests_[i].last - requests_[i].born > life; };
    walk(
        [&](uint32_t i) {
          plan.offsets[i] = (is_low(i) ? low : high).take(size_[i]);
          plan.bytes = std::max(plan.bytes, low.extent() + high.extent());
        },
        [&](uint32_t i) { (is_low(i) ? low : high).give(plan.offsets[i], size_[i]); });
    for (const uint32_t i : by_allocation_) {
      if (!is_low(i)) plan.offsets[i] = plan.bytes - plan.offsets[i] - size_[i];
    }
    return plan;
  }

  // Places storages by decreasing `weight`, each at the lowest offset that is free during its lifetime.
  template <typename Weight>
  ArenaLayout offline(const Weight& weight, std::string name) const {
    ArenaLayout plan{.offsets = std::vector<int64_t>(size_.size(), 0), .planner = std::move(name)};
    std::vector<uint32_t> order = by_allocation_;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return weight(a) > weight(b); });
    struct Placed {
      int64_t begin, end;
      uint32_t born, last;
    };
    std::vector<Placed> placed;  // by `begin`
    placed.reserve(order.size());
    for (const uint32_t i : order) {
      const AllocationLifetime& request = requests_[i];
      int64_t offset = 0;
      for (const Placed& other : placed) {
        if (other.last < request.born || request.last < other.born) continue;
        if (other.begin - offset >= size_[i]) break;
        offset = std::max(offset, other.end);
      }
      plan.offsets[i] = offset;
      plan.bytes = std::max(plan.bytes, offset + size_[i]);
      const auto at = std::upper_bound(placed.begin(), placed.end(), offset,
                                       [](int64_t value, const Placed& other) { return value < other.begin; });
      placed.insert(at, {offset, offset + size_[i], request.born, request.last});
    }
    return plan;
  }

  std::vector<ArenaLayout> all(size_t offline_limit) const {
    std::vector<ArenaLayout> plans;
    plans.push_back(one_end(Fit::kTightest, "tightest gap"));
    plans.push_back(one_end(Fit::kLowest, "lowest gap"));
    for (const uint32_t parts : {64U, 16U, 4U}) {
      plans.push_back(two_ends(steps_ / parts, "two ends, 1/" + std::to_string(parts)));
    }
    if (by_allocation_.size() <= offline_limit) {
      plans.push_back(offline([&](uint32_t i) { return size_[i]; }, "largest first"));
      const auto life = [&](uint32_t i) { return static_cast<double>(requests_[i].last - requests_[i].born + 1); };
      plans.push_back(
          offline([&](uint32_t i) { return static_cast<double>(size_[i]) * life(i); }, "size x life first"));
      plans.push_back(offline([&](uint32_t i) { return life(i); }, "longest first"));
    }
    return plans;
  }

 private:
  // Visits allocations and frees in order; storages last used before a step are freed by then.
  template <typename Born, typename Dead>
  void walk(const Born& born, const Dead& dead) const {
    size_t next_free = 0;
    for (const uint32_t i : by_allocation_) {
      while (requests_[by_free_[next_free]].last < requests_[i].born) dead(by_free_[next_free++]);
      born(i);
    }
  }

  const std::vector<AllocationLifetime>& requests_;
  std::vector<int64_t> size_;  // aligned
  std::vector<uint32_t> by_allocation_, by_free_;
  uint32_t steps_ = 0;
};

}  // namespace

ArenaLayout memory_layout(const std::vector<AllocationLifetime>& requests, const MemoryLayoutOptions& options) {
  if (options.alignment < 1 || !std::has_single_bit(static_cast<uint64_t>(options.alignment))) {
    throw Error("memory_layout: the alignment must be a power of two");
  }
  const Planner planner(requests, options.alignment);
  std::vector<ArenaLayout> plans = planner.all(options.offline_limit);
  ArenaLayout& best = *std::min_element(plans.begin(), plans.end(),
                                        [](const ArenaLayout& a, const ArenaLayout& b) { return a.bytes < b.bytes; });
  best.bound = planner.bound();
  return std::move(best);
}

MemoryLayout memory_layout(const ProgramCosts& costs, const MemoryLayoutOptions& options) {
  const Graph& graph = costs.graph();
  const AllocationOrder order(costs, main_device(graph, options.device));
  std::vector<AllocationLifetime> requests;
  std::vector<StorageId> storages;
  const auto add = [&](StorageId id) {
    storages.push_back(id);
    requests.push_back({graph.storage(id).bytes, order.first(id), order.last(id)});
  };
  for (const StorageId id : order.before()) add(id);
  for (uint32_t step = 0; step < order.steps(); ++step) {
    for (const StorageId id : order.born(step)) add(id);
    // Scratch takes space like any storage; its offset is not reported.
    if (order.scratch(step) > 0) requests.push_back({order.scratch(step), step, step}), storages.emplace_back();
  }
  const ArenaLayout plan = memory_layout(requests, options);
  MemoryLayout result{.bytes = plan.bytes, .bound = plan.bound, .planner = plan.planner};
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i].valid()) result.offsets[storages[i]] = plan.offsets[i];
  }
  return result;
}

MemoryLayout memory_layout(const Graph& graph, const MemoryLayoutOptions& options) {
  return memory_layout(ProgramCosts(graph), options);
}

}  // namespace shadowgraph
