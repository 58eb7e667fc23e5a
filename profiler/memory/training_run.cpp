#include "shadowgraph/profile/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ir/analysis/module_tree.h"
#include "profiler/memory/device_run.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kLabel = "step ";

// Returns the number in "step 3"; 0 for other regions.
uint32_t step_of(const Graph& graph, RegionId id) {
  const Region& region = graph.region(id);
  const std::string_view name = graph.text_or_empty(region.name);
  uint32_t number = 0;
  if (region.kind != RegionKind::kScope || !name.starts_with(kLabel)) return 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kLabel.size(), end, number);
  return error == std::errc() && stop == end ? number : 0;
}

// Returns for each step the position of its last node.
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
        "this graph is not of a training run: its nodes are in no regions \"step 1\", \"step 2\", ...; "
        "capture_training_run records one");
  }
  return ends;
}

}  // namespace

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
      fmt::format("{:<15}{:>12}{:>12}{:>12}  {}\n", "training run", "live peak", "allocated", "reserved", "where");
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
  text += fmt::format("  {:<13}{:>12}{:>12}{:>12}\n", "peak of all", human_bytes(run.peak()), "",
                      bytes(run.reserved_peak()));
  if (!run.out_of_memory.empty()) text += "  does not fit: " + run.out_of_memory + "\n";
  return text;
}

}  // namespace shadowgraph
