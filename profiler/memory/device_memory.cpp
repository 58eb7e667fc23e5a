#include "shadowgraph/profile/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

#include "profiler/memory/allocation_order.h"
#include "profiler/memory/device_run.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/caching_allocator.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {
namespace {

// Says whether cuBLAS computes an operator. Convolutions and attention have libraries of their own.
bool takes_cublas(const Target& target) {
  constexpr std::array<std::string_view, 13> kNames = {
      "aten::mm",     "aten::addmm",    "aten::bmm", "aten::baddbmm", "aten::mv",     "aten::addmv",
      "aten::addmm_", "aten::baddbmm_", "aten::dot", "aten::addbmm",  "aten::linear", "aten::_addmm_activation",
      "aten::vdot"};
  const std::string_view name = target.name();
  const std::string_view base = name.substr(0, name.find('.', name.find("::")));
  return std::find(kNames.begin(), kNames.end(), base) != kNames.end();
}

// Runs a graph's allocations through an allocator, step after step of a training run.
class TrainingRun {
 public:
  TrainingRun(const ProgramCosts& costs, const AllocationOrder& order, const DeviceMemoryOptions& options,
              c10::Device device)
      : costs_(costs), graph_(costs.graph()), order_(order), options_(options) {
    result_.options = options;
    result_.device = device;
    const bool cuda = device.is_cuda();
    if (cuda) {
      result_.context = options.assumptions.context;
      const Communication communication = Communication::of(graph_);
      const auto sends = [](const ProcessGroupInfo& group) { return group.size > 1; };
      result_.nccl = options.assumptions.nccl_group * std::ranges::count_if(communication.groups(), sends);
      for (uint32_t at = 0; at < order.steps(); ++at) {
        if (takes_cublas(graph_.target(costs.nodes[at]))) cublas_steps_.try_emplace(handle_of(at), at);
      }
      result_.cublas_workspace = options.assumptions.workspace() * static_cast<int64_t>(cublas_steps_.size());
    }
    int64_t capacity = options.capacity;
    if (capacity != AllocatorSettings::kUnlimited) {
      capacity = std::max<int64_t>(0, capacity - result_.context - result_.nccl);
    }
    allocator_ = CachingAllocator(options.allocator, capacity);
  }

  void record_history() { allocator_.record_history(); }
  // Returns how many calls the allocator had had when the reserved bytes were first at their peak.
  int64_t takes_at_peak() const { return takes_at_peak_; }
  // Notes what the allocator has after so many calls.
  void look_after(int64_t takes) { look_after_ = takes; }
  const std::vector<CachingAllocator::SegmentInfo>& seen() const { return seen_; }
  CachingAllocator take_allocator() { return std::move(allocator_); }

  DeviceMemory steps() {
    for (const StorageId id : order_.before()) allocate(id, std::nullopt);
    const bool repeats = graph_.metadata.mode == ProgramMode::kTrain;
    const int count = repeats ? std::max(1, options_.steps) : 1;
    for (int i = 0; i < count; ++i) {
      // The next step drops what one step leaves: gradients with zero_grad, results when the variable is set again. A
      // program that frees what existed before it cannot run again.
      if (i > 0) {
        for (const StorageId id : order_.left()) {
          if (costs_.kinds[id] != StorageKind::kOptimizerState) release(id);
        }
      }
      step();
      allocator_.synchronize();
      result_.reserved_after.push_back(allocator_.stats().reserved.now);
      result_.allocated_after.push_back(allocator_.stats().allocated.now);
      if (lost_) break;
    }
    const auto& stats = allocator_.stats();
    result_.requested_peak = stats.requested.peak;
    result_.allocated_peak = stats.allocated.peak;
    result_.reserved_peak = stats.reserved.peak;
    result_.segments = stats.segments.now;
    result_.retries = stats.retries;
    return result_;
  }

  // Runs the graph once, in stretches.
  std::vector<AllocatorPeaks> stretches(std::span<const uint32_t> ends) {
    for (const StorageId id : order_.before()) allocate(id, std::nullopt);
    std::vector<AllocatorPeaks> peaks;
    uint32_t begin = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      allocator_.reset_peaks();
      const uint32_t end = i + 1 == ends.size() ? order_.steps() : ends[i] + 1;
      step(begin, end);
      allocator_.synchronize();
      begin = end;
      const auto& stats = allocator_.stats();
      peaks.push_back({stats.allocated.peak, stats.reserved.peak, stats.reserved.now});
    }
    return peaks;
  }

 private:
  // cuBLAS's workspace is one for each stream and handle, and each thread has its handle. The autograd engine computes
  // on a thread of its own.
  using CublasHandle = std::pair<int32_t, bool>;
  CublasHandle handle_of(uint32_t at) const {
    return {order_.stream(at), graph_.node(costs_.nodes[at]).phase == Graph::kBackward};
  }
  void step() { step(0, order_.steps()); }
  void step(uint32_t begin, uint32_t end) {
    for (uint32_t at = begin; at < end; ++at) {
      if (const auto found = cublas_steps_.find(handle_of(at)); found != cublas_steps_.end() && found->second == at) {
        if (workspaces_.insert(found->first).second) take(options_.assumptions.workspace(), kNoTag, at);
      }
      for (const StorageId id : order_.born(at)) {
        if (!handles_[id].valid()) allocate(id, at);  // state of the optimizer is there from the second step on
      }
      if (options_.scratch && order_.scratch(at) > 0) allocator_.free(take(order_.scratch(at), kNoTag, at));
      for (const StorageId id : order_.dead(at)) {
        lost_ |= existed_before(graph_, graph_.storage(id));
        release(id);
      }
    }
  }
  void allocate(StorageId id, std::optional<uint32_t> at) {
    handles_[id] = take(graph_.storage(id).bytes, id.index, at);
    if (!at) return;
    for (const uint32_t stream : order_.used_on(*at)) {
      allocator_.record_stream(handles_[id], static_cast<int32_t>(stream));
    }
  }
  void release(StorageId id) {
    allocator_.free(handles_[id]);
    handles_[id] = {};
  }
  CachingAllocator::Handle take(int64_t bytes, uint32_t tag, std::optional<uint32_t> at) {
    const int64_t most = allocator_.stats().reserved.peak;
    try {
      const auto handle = allocator_.allocate(bytes, at ? order_.stream(*at) : 0, tag);
      const auto& stats = allocator_.stats();
      ++takes_;
      if (stats.reserved.peak > most) {
        takes_at_peak_ = takes_;
        result_.held_at_peak = stats.active.now;
        result_.stuck_at_peak = stats.inactive_split.now;
      }
      if (takes_ == look_after_) seen_ = allocator_.snapshot();
      return handle;
    } catch (const OutOfMemoryError& error) {
      const std::string where = at ? fmt::format("node {}, {}", *at, graph_.target(costs_.nodes[*at]).name())
                                   : "what exists before the program";
      throw OutOfMemoryError(where + ": " + error.what());
    }
  }

  static constexpr uint32_t kNoTag = DeviceRun::kNoStorage;
  const ProgramCosts& costs_;
  const Graph& graph_;
  const AllocationOrder& order_;
  const DeviceMemoryOptions& options_;
  CachingAllocator allocator_;
  IdMap<StorageId, CachingAllocator::Handle> handles_;
  std::map<CublasHandle, uint32_t> cublas_steps_;  // where cuBLAS is first called
  std::set<CublasHandle> workspaces_;              // that are there
  bool lost_ = false;
  int64_t takes_ = 0;
  int64_t takes_at_peak_ = 0;
  int64_t look_after_ = -1;
  std::vector<CachingAllocator::SegmentInfo> seen_;
  DeviceMemory result_;
};

// Says when a block dies: later is longer. Workspaces stay.
uint32_t death(const AllocationOrder& order, uint32_t tag) {
  return tag == DeviceRun::kNoStorage ? std::numeric_limits<uint32_t>::max() : order.last(StorageId(tag));
}

}  // namespace

DeviceRun run_on_device(const ProgramCosts& costs, const DeviceMemoryOptions& options, bool history) {
  const c10::Device device = main_device(costs.graph(), options.device);
  const AllocationOrder order(costs, device);
  TrainingRun run(costs, order, options, device);
  if (history) run.record_history();
  DeviceMemory memory = run.steps();
  return {std::move(memory), run.take_allocator()};
}

std::vector<AllocatorPeaks> allocator_peaks(const ProgramCosts& costs, const DeviceMemoryOptions& options,
                                            std::span<const uint32_t> ends) {
  const c10::Device device = main_device(costs.graph(), options.device);
  const AllocationOrder order(costs, device);
  return TrainingRun(costs, order, options, device).stretches(ends);
}

DeviceMemory device_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options) {
  return run_on_device(costs, options, false).memory;
}

std::vector<SettingsOutcome> other_settings(const ProgramCosts& costs, const DeviceMemoryOptions& options) {
  const c10::Device device = main_device(costs.graph(), options.device);
  const AllocationOrder order(costs, device);
  std::vector<SettingsOutcome> outcomes;
  for (const std::string_view text : {"", "expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512",
                                      "roundup_power2_divisions:4"}) {
    DeviceMemoryOptions changed = options;
    changed.allocator = AllocatorSettings::parse(text);
    if (changed.allocator == options.allocator) continue;
    try {
      outcomes.push_back({std::string(text), TrainingRun(costs, order, changed, device).steps().reserved_peak});
    } catch (const OutOfMemoryError&) {  // the step does not fit that way
    }
  }
  std::stable_sort(outcomes.begin(), outcomes.end(),
                   [](const auto& a, const auto& b) { return a.reserved_peak < b.reserved_peak; });
  return outcomes;
}

std::vector<PinnedMemory> pinned_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options) {
  const c10::Device device = main_device(costs.graph(), options.device);
  const AllocationOrder order(costs, device);
  TrainingRun whole(costs, order, options, device);
  whole.steps();
  TrainingRun again(costs, order, options, device);
  again.look_after(whole.takes_at_peak());
  again.steps();
  std::vector<PinnedMemory> pinned;
  for (const auto& segment : again.seen()) {
    PinnedMemory entry{.segment = segment.bytes};
    const CachingAllocator::BlockInfo* longest = nullptr;
    for (const auto& block : segment.blocks) {
      if (!block.active) {
        entry.stuck += block.bytes;
      } else if (longest == nullptr || death(order, block.tag) > death(order, longest->tag)) {
        longest = &block;
      }
    }
    if (longest == nullptr || entry.stuck == 0) continue;
    if (longest->tag != DeviceRun::kNoStorage) entry.storage = StorageId(longest->tag);
    entry.bytes = longest->requested;
    pinned.push_back(entry);
  }
  std::stable_sort(pinned.begin(), pinned.end(), [](const auto& a, const auto& b) { return a.stuck > b.stuck; });
  return pinned;
}

std::vector<PinnedMemory> pinned_memory(const Graph& graph, const DeviceMemoryOptions& options) {
  return pinned_memory(ProgramCosts(graph), options);
}

DeviceMemory device_memory(const Graph& graph, const DeviceMemoryOptions& options) {
  return device_memory(ProgramCosts(graph), options);
}
std::vector<SettingsOutcome> other_settings(const Graph& graph, const DeviceMemoryOptions& options) {
  return other_settings(ProgramCosts(graph), options);
}

}  // namespace shadowgraph
