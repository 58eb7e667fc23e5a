#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "ir/analysis/module_tree.h"
#include "ir/operators/operator_facts.h"
#include "profiler/cost/scratch_rules.h"
#include "profiler/memory/allocation_order.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/units.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// Builds rows by step from (step, storage) pairs, keeping their order within a step.
void group(const std::vector<std::pair<uint32_t, StorageId>>& entries, uint32_t steps, std::vector<StorageId>& all,
           std::vector<uint32_t>& begin) {
  begin.assign(steps + 1, 0);
  for (const auto& [step, storage] : entries) ++begin[step + 1];
  for (uint32_t step = 0; step < steps; ++step) begin[step + 1] += begin[step];
  all.resize(entries.size());
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (const auto& [step, storage] : entries) all[next[step]++] = storage;
}

// Returns true if cuBLAS computes the operator. Convolutions and attention use other libraries.
bool takes_cublas(const Target& target) { return operator_row(target.name()).is & OperatorFact::kCublas; }

// Replays a graph's allocations through an allocator, for one training step after another.
class TrainingRun {
 public:
  TrainingRun(const ProgramCosts& costs, const AllocationOrder& order, const DeviceMemoryOptions& options,
              c10::Device device)
      : costs_(costs), graph_(costs.graph()), order_(order), options_(options) {
    result_.options = options;
    result_.device = device;
    if (device.is_cuda()) {
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
  // Returns the number of allocator calls after which reserved bytes first reached their peak.
  int64_t calls_at_peak() const { return calls_at_peak_; }
  void record_after(int64_t takes) { record_after_ = takes; }
  const std::vector<CachingAllocator::SegmentInfo>& seen() const { return seen_; }
  CachingAllocator take_allocator() { return std::move(allocator_); }

  DeviceMemory steps() {
    for (const StorageId id : order_.before()) allocate(id, std::nullopt);
    const bool repeats = graph_.metadata.mode == ProgramMode::kTrain;
    const int count = repeats ? std::max(1, options_.steps) : 1;
    for (int i = 0; i < count; ++i) {
      // The next step frees results of the previous one: gradients with zero_grad, outputs when the variable is
      // reassigned. A program that frees what existed before it cannot run again.
      if (i > 0) {
        for (const StorageId id : order_.left()) {
          if (costs_.kinds[id] != StorageKind::kOptimizerState) release(id);
        }
      }
      step();
      allocator_.synchronize();
      result_.reserved_after.push_back(allocator_.stats().reserved.current);
      result_.allocated_after.push_back(allocator_.stats().allocated.current);
      if (lost_) break;
    }
    const auto& stats = allocator_.stats();
    result_.requested_peak = stats.requested.peak;
    result_.allocated_peak = stats.allocated.peak;
    result_.reserved_peak = stats.reserved.peak;
    result_.segments = stats.segments.current;
    result_.retries = stats.retries;
    return result_;
  }

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
      peaks.push_back({stats.allocated.peak, stats.reserved.peak, stats.reserved.current});
    }
    return peaks;
  }

 private:
  // One cuBLAS workspace for each stream and handle. Each thread has a handle; the autograd engine has its own thread.
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
        if (!handles_[id].valid()) allocate(id, at);  // optimizer state already exists from the second step on
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
        calls_at_peak_ = takes_;
        result_.held_at_peak = stats.active.current;
        result_.stuck_at_peak = stats.inactive_split.current;
      }
      if (takes_ == record_after_) seen_ = allocator_.snapshot();
      return handle;
    } catch (const OutOfMemoryError& error) {
      const std::string where = at ? fmt::format("node {}, {}", *at, graph_.target(costs_.nodes[*at]).name())
                                   : "tensors that exist before the program";
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
  std::map<CublasHandle, uint32_t> cublas_steps_;  // step of the first cuBLAS call
  std::set<CublasHandle> workspaces_;              // allocated ones
  bool lost_ = false;
  int64_t takes_ = 0, calls_at_peak_ = 0;
  int64_t record_after_ = -1;
  std::vector<CachingAllocator::SegmentInfo> seen_;
  DeviceMemory result_;
};

// Returns the last step that uses a block, for comparison. Workspaces are never freed.
uint32_t last_step_of(const AllocationOrder& order, uint32_t tag) {
  return tag == DeviceRun::kNoStorage ? std::numeric_limits<uint32_t>::max() : order.last(StorageId(tag));
}

constexpr std::string_view kLabel = "step ";

// Returns the number in "step 3"; 0 for other regions.
uint32_t step_of(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  const std::string_view name = graph.text_or_empty(region.name);
  if (region.kind != RegionKind::kScope || !name.starts_with(kLabel)) return 0;
  return parse_number<uint32_t>(name.substr(kLabel.size())).value_or(0);
}

// Returns the position of the last node of each step.
std::vector<uint32_t> ends_of(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<RegionId, uint32_t> steps;
  for (uint32_t i = 0; i < graph.region_count(); ++i) {  // parents come first
    const RegionId id(i);
    const RegionId parent = graph.region(id).parent;
    steps[id] = parent.valid() && steps[parent] != 0 ? steps[parent] : step_of(graph, id);
  }
  std::vector<uint32_t> ends;
  for (uint32_t at = 0; at < costs.nodes.size(); ++at) {
    const RegionId region = graph.node(costs.nodes[at]).region;
    const uint32_t step = region.valid() ? std::as_const(steps)[region] : 0;
    if (step == 0) continue;
    if (step == ends.size() + 1) {
      ends.push_back(at);
    } else if (step == ends.size()) {
      ends.back() = at;
    } else {
      ends.clear();
      break;
    }
  }
  if (ends.empty()) {
    throw Error(
        "the graph has no steps: expected nodes in regions \"step 1\", \"step 2\", ...; record it with "
        "capture_training_run");
  }
  return ends;
}

}  // namespace

AllocationOrder::AllocationOrder(const ProgramCosts& costs, c10::Device device) {
  const Graph& graph = costs.graph();
  const auto steps = static_cast<uint32_t>(costs.nodes.size());
  const auto is_here = [&](c10::Device other) { return is_on(other, device); };
  std::vector<std::pair<uint32_t, StorageId>> before, born, dead;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    if (!is_here(storage.device())) continue;
    const bool there = existed_before(graph, storage);
    const bool has_place = storage.born.valid() && !graph.is_erased(storage.born);
    const uint32_t first = has_place ? costs.order[storage.born] : 0;
    (there ? before : born).emplace_back(first, id);
    first_[id] = there ? 0 : first;
    last_[id] = steps == 0 ? 0 : steps - 1;
    if (storage.freed_after.valid() && !graph.is_erased(storage.freed_after)) {
      last_[id] = std::max(first, costs.order[storage.freed_after]);
      dead.emplace_back(last_[id], id);
    } else if (!there) {
      left_.push_back(id);
    }
  }
  std::stable_sort(before.begin(), before.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [step, id] : before) before_.push_back(id);
  group(born, steps, born_, born_begin_);
  group(dead, steps, dead_, dead_begin_);
  scratch_.assign(steps, 0);
  streams_.assign(steps, 0);
  for (uint32_t step = 0; step < steps; ++step) {
    if (!graph.has_notes(costs.nodes[step])) continue;
    StreamNotes notes = stream_notes(graph, costs.nodes[step]);
    streams_[step] = static_cast<int32_t>(notes.stream);
    if (!notes.used_on.empty()) used_on_[step] = std::move(notes.used_on);
  }
  for (uint32_t step = 0; step < steps; ++step) {
    const int64_t bytes = costs.scratch.of(costs.nodes[step]).bytes;
    if (bytes > 0 && is_here(device_of_call(graph, costs.nodes[step]).value_or(c10::Device(c10::kCPU)))) {
      scratch_[step] = bytes;
    }
  }
}

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
    } catch (const OutOfMemoryError&) {  // does not fit with these settings
    }
  }
  std::stable_sort(outcomes.begin(), outcomes.end(),
                   [](const auto& a, const auto& b) { return a.reserved_peak < b.reserved_peak; });
  return outcomes;
}

std::vector<FragmentationCause> fragmentation_causes(const ProgramCosts& costs, const DeviceMemoryOptions& options) {
  const c10::Device device = main_device(costs.graph(), options.device);
  const AllocationOrder order(costs, device);
  TrainingRun whole(costs, order, options, device);
  whole.steps();
  TrainingRun again(costs, order, options, device);
  again.record_after(whole.calls_at_peak());
  again.steps();
  std::vector<FragmentationCause> pinned;
  for (const auto& segment : again.seen()) {
    FragmentationCause entry{.segment = segment.bytes};
    const CachingAllocator::BlockInfo* longest = nullptr;
    for (const auto& block : segment.blocks) {
      if (!block.active) {
        entry.stuck += block.bytes;
      } else if (longest == nullptr || last_step_of(order, block.tag) > last_step_of(order, longest->tag)) {
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

std::vector<FragmentationCause> fragmentation_causes(const Graph& graph, const DeviceMemoryOptions& options) {
  return fragmentation_causes(ProgramCosts(graph), options);
}

DeviceMemory device_memory(const Graph& graph, const DeviceMemoryOptions& options) {
  return device_memory(ProgramCosts(graph), options);
}
std::vector<SettingsOutcome> other_settings(const Graph& graph, const DeviceMemoryOptions& options) {
  return other_settings(ProgramCosts(graph), options);
}

RunMemory RunMemory::of(const Graph& graph, const DeviceMemoryOptions& options) {
  const ProgramCosts costs(graph);
  const std::vector<uint32_t> ends = ends_of(costs);
  const c10::Device device = main_device(graph, options.device);
  const MemoryTimeline timeline = costs.timeline(device);
  RunMemory run;
  uint32_t at = 0;
  for (const uint32_t end : ends) {
    uint32_t most = at;
    for (; at <= end; ++at) {
      if (timeline.total(at) > timeline.total(most)) most = at;
    }
    const NodeId node = costs.nodes[most];
    run.steps.push_back({.peak = timeline.total(most),
                         .op = graph.target(node).name(),
                         .module = module_path(graph, node),
                         .phase = std::string(graph.phase_name(graph.node(node).phase))});
  }
  if (device.is_cpu()) return run;
  DeviceMemoryOptions once = options;
  once.device = device;
  std::vector<AllocatorPeaks> peaks;
  try {
    peaks = allocator_peaks(costs, once, ends);
  } catch (const OutOfMemoryError& error) {
    run.out_of_memory = error.what();
    return run;
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    run.steps[i].allocated_peak = peaks[i].allocated;
    run.steps[i].reserved_peak = peaks[i].reserved;
    run.steps[i].reserved_after = peaks[i].reserved_after;
  }
  return run;
}

int64_t RunMemory::peak() const {
  int64_t most = 0;
  for (const StepMemory& step : steps) most = std::max(most, step.peak);
  return most;
}

std::optional<int64_t> RunMemory::reserved_peak() const {
  std::optional<int64_t> most;
  for (const StepMemory& step : steps) most = std::max(most, step.reserved_peak);
  return most;
}

std::string to_text(const RunMemory& run) {
  std::string text =
      fmt::format("{:<15}{:>12}{:>12}{:>12}  {}\n", "training run", "live peak", "allocated", "reserved", "peak at");
  const auto bytes = [](const std::optional<int64_t>& figure) { return figure ? human_bytes(*figure) : "-"; };
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const StepMemory& step = run.steps[i];
    const std::string name = i == 0                      ? "first step"
                             : i + 1 == run.steps.size() ? "steady state"
                             : i == 1                    ? "second step"
                                                         : fmt::format("step {}", i + 1);
    text +=
        fmt::format("  {:<13}{:>12}{:>12}{:>12}  {}, {}{}\n", name, human_bytes(step.peak), bytes(step.allocated_peak),
                    bytes(step.reserved_peak), step.phase, step.op, step.module.empty() ? "" : " of " + step.module);
  }
  text +=
      fmt::format("  {:<13}{:>12}{:>12}{:>12}\n", "maximum", human_bytes(run.peak()), "", bytes(run.reserved_peak()));
  if (!run.out_of_memory.empty()) text += "  does not fit: " + run.out_of_memory + "\n";
  return text;
}

}  // namespace shadowgraph
