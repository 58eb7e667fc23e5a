#include "shadowgraph/profile/profile.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/step_time.h"
#include "support/text.h"

namespace shadowgraph {

// Returns the number of elements of the unsharded parameter, from a note such as "8,3"; nullopt without one.
static std::optional<int64_t> whole_numel(const Graph& graph, NodeId node) {
  const auto sizes = parse_numbers<int64_t>(graph.note(node, "whole_sizes"), ',');
  if (!sizes || sizes->empty()) return std::nullopt;  // "scalar"
  return product_of(*sizes);
}

ParameterCount ParameterCount::of(const Graph& graph) {
  ParameterCount count;
  std::set<std::tuple<StorageId, int64_t, std::vector<int64_t>>> seen;
  for (NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    // A parameter, or a view of a flattened one that the program itself created.
    const bool parameter = target == target_of(Builtin::kParameter) || !graph.note(node, "parameter").empty();
    if (!parameter && target != target_of(Builtin::kBuffer) && graph.note(node, "buffer").empty()) continue;
    graph.for_each_output(node, [&](ValueId id) {
      const Value& value = graph.value(id);
      const auto sizes = graph.sizes(id);
      if (value.kind != ValueKind::kTensor) return;
      const bool fresh = !value.storage.valid() ||
                         seen.emplace(value.storage, value.offset, std::vector(sizes.begin(), sizes.end())).second;
      if (!fresh) return;
      (parameter ? count.parameters : count.buffers) += graph.numel(id);
      if (parameter) count.whole_parameters += whole_numel(graph, node).value_or(graph.numel(id));
      (parameter ? count.parameter_bytes : count.buffer_bytes) += graph.logical_bytes(id);
      ++(parameter ? count.parameter_tensors : count.buffer_tensors);
    });
  }
  return count;
}

namespace {

PeakInfo describe(const Graph& graph, const MemoryPeak& peak) {
  PeakInfo info{.bytes = peak.bytes, .node = peak.step, .by_kind = peak.by_kind};
  if (!peak.node.valid()) return info;
  info.op = graph.target(peak.node).name();
  if (const std::string name = placeholder_name(graph, peak.node); !name.empty()) info.op += " " + name;
  info.module = module_path(graph, peak.node);
  info.source = graph.text_or_empty(graph.node(peak.node).source);
  info.phase = graph.phase_name(peak.phase);
  return info;
}

std::optional<std::vector<OutputInfo>> outputs_of(const Graph& graph) {
  const NodeId last = graph.last();
  if (!last.valid() || graph.node(last).target != target_of(Builtin::kOutput)) return std::nullopt;
  std::vector<OutputInfo> outputs;
  const auto add = [&](auto&& self, std::span<const Argument> arguments) -> void {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kList) {
        self(self, graph.list(argument));
      } else if (argument.kind == ArgumentKind::kValue) {
        const Value& value = graph.value(argument.ref.value);
        const auto sizes = graph.sizes(argument.ref.value);
        const auto strides = graph.strides(argument.ref.value);
        outputs.push_back({.shape = {sizes.begin(), sizes.end()},
                           .dtype = value.dtype,
                           .stride = {strides.begin(), strides.end()},
                           .device = value.device()});
      } else {
        outputs.push_back({.defined = false});
      }
    }
  };
  add(add, graph.arguments(last));
  return outputs;
}

std::vector<ModuleProfile> modules_of(const ProgramCosts& costs, const MemoryTimeline& timeline) {
  const std::vector<Module>& tree = costs.modules().tree.modules;
  const auto count = static_cast<uint32_t>(tree.size());
  std::vector<uint32_t> parents;
  parents.reserve(count);
  for (const Module& module : tree) parents.push_back(module.parent);
  auto figures = group_costs(costs.graph(), costs.kinds, costs.flops(), costs.modules().of_node, count, parents);
  for (uint32_t i = count; i-- > 1;) figures[parents[i]].add_disjoint(figures[i]);
  std::vector<ModuleProfile> modules;
  modules.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    modules.push_back({tree[i].path, tree[i].class_name, tree[i].calls, tree[i].children, figures[i]});
  }
  const IdMap<NodeId, uint32_t>& of_node = costs.modules().of_node;
  for (uint32_t step = 0; step < timeline.steps(); ++step) {
    const uint32_t own = of_node[timeline.node(step)];
    if (own < count) modules[own].peak = std::max(modules[own].peak, timeline.total(step));
  }
  for (uint32_t i = count; i-- > 1;) modules[parents[i]].peak = std::max(modules[parents[i]].peak, modules[i].peak);
  return modules;
}

std::optional<CacheInfo> cache_of(const Metadata& metadata) {
  const auto text = [&](const char* key) {
    const auto found = metadata.other.find(key);
    return found == metadata.other.end() ? std::string() : found->second;
  };
  const auto number = [&](const char* key) {
    int64_t value = 0;
    const std::string digits = text(key);
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  };
  if (text("generation").empty() || number("context") <= 0) return std::nullopt;
  return CacheInfo{.step = text("generation"),
                   .kind = text("cache"),
                   .context = number("context"),
                   .bytes_per_token = number("cache_bytes_per_token"),
                   .bytes = number("cache_bytes"),
                   .positions = number("positions")};
}

std::optional<std::string> optimizer_implementation(const ProgramCosts& costs, const Graph& graph) {
  const auto updates = [&](const Argument& argument) {
    return argument.kind == ArgumentKind::kValue && graph.value(argument.ref.value).storage.valid() &&
           costs.kinds[graph.value(argument.ref.value).storage] == StorageKind::kParameter;
  };
  std::optional<std::string> found;
  for (const NodeId node : costs.nodes) {
    if (graph.node(node).phase != Graph::kOptimizer || graph.arguments(node).empty()) continue;
    const Argument& first = graph.arguments(node)[0];
    const std::string_view name = graph.target(node).name();
    if (first.kind == ArgumentKind::kList && std::ranges::any_of(graph.list(first), updates)) {
      if (name.starts_with("aten::_fused_")) return "fused";
      if (name.starts_with("aten::_foreach_")) return "foreach";
    }
    if (updates(first) && graph.facts(node).is_in_place) found = "single";
  }
  return found;
}

std::map<std::string, int64_t> calls_by_operator(const ProgramCosts& costs, const Graph& graph) {
  IdMap<TargetId, int64_t> calls;
  for (const NodeId node : costs.nodes) ++calls[graph.node(node).target];
  std::map<std::string, int64_t> by_name;
  for (uint32_t i = 0; i < calls.size(); ++i) {
    if (const int64_t count = std::as_const(calls)[TargetId(i)]; count > 0) {
      by_name[graph.target(TargetId(i)).name()] += count;
    }
  }
  return by_name;
}

std::map<std::string, PeakInfo> peaks_by_phase(const Graph& graph, const MemoryTimeline& timeline) {
  std::map<PhaseId, MemoryPeak> peaks;
  for (uint32_t step = 0; step < timeline.steps(); ++step) {
    const NodeId node = timeline.node(step);
    MemoryPeak& most = peaks[graph.node(node).phase];
    if (most.node.valid() && timeline.total(step) <= most.bytes) continue;
    most = {.bytes = timeline.total(step),
            .step = step,
            .node = node,
            .phase = graph.node(node).phase,
            .by_kind = timeline.live(step)};
  }
  std::map<std::string, PeakInfo> by_name;
  for (const auto& [phase, most] : peaks) by_name[graph.phase_name(phase)] = describe(graph, most);
  return by_name;
}

// Returns the device's memory under its caching allocator; nullopt for a CPU, or if the run does not fit.
std::optional<DeviceMemory> memory_of(const ProgramCosts& costs, c10::Device device, DeviceMemoryOptions options,
                                      std::string& out_of_memory) {
  if (device.is_cpu()) return std::nullopt;
  options.device = device;
  try {
    return device_memory(costs, options);
  } catch (const OutOfMemoryError& error) {
    out_of_memory = error.what();
    return std::nullopt;
  }
}

// Sets the memory limit, and the bytes that devices of unlimited and of that memory would hold.
void add_limit(Profile& profile, const ProgramCosts& costs, const ProfileOptions& options) {
  profile.limit = options.limit;
  if (!profile.limit && options.memory.capacity != AllocatorSettings::kUnlimited) {
    profile.limit = MemoryLimit::of_bytes(options.memory.capacity);
  }
  // A CPU spec describes some machine, whose host memory is not a limit of this one.
  const bool known = options.spec != nullptr && options.spec->device == profile.device.type();
  if (!profile.limit && known && !profile.device.is_cpu()) {
    profile.limit = MemoryLimit::of(*options.spec);
    if (profile.limit) profile.limit->requested = false;
  }
  if (profile.device.is_cpu() || !profile.limit) return;
  // No retry: the limit had no effect, so the second run below is not needed.
  std::string ignored;
  if (profile.device_memory && profile.device_memory->retries == 0) {
    profile.unlimited_bytes = profile.device_memory->footprint();
  } else {
    DeviceMemoryOptions unlimited = options.memory;
    unlimited.capacity = AllocatorSettings::kUnlimited;
    unlimited.allocator.per_process_memory_fraction = unlimited.allocator.garbage_collection_threshold = 0;
    // A run with extremely large sizes does not even fit in unlimited memory; its live bytes are then a lower bound.
    const auto held = memory_of(costs, profile.device, unlimited, ignored);
    profile.unlimited_bytes = held ? held->footprint() : profile.peak_with_scratch.bytes;
  }
  std::optional<DeviceMemory> within = profile.device_memory;
  // `device_memory` is that of unlimited memory if the limit is only compared with.
  if (options.memory.capacity == AllocatorSettings::kUnlimited && *profile.unlimited_bytes > profile.limit->bytes) {
    DeviceMemoryOptions limited = options.memory;
    limited.capacity = profile.limit->bytes;
    within = memory_of(costs, profile.device, limited, ignored);
  }
  if (within) profile.limited_bytes = within->footprint();
}

}  // namespace

Profile profile(const Graph& graph, const ProfileOptions& asked) {
  ProfileOptions options = asked;
  if (options.limit) options.memory.capacity = options.limit->bytes;
  if (options.spec != nullptr && options.memory.assumptions.architecture.empty()) {
    options.memory.assumptions.architecture = options.spec->architecture;
  }
  Profile profile;
  profile.costs_ = std::make_shared<const ProgramCosts>(graph, options.measured);
  profile.views_ = std::make_shared<ProfileViews>();
  const ProgramCosts& costs = *profile.costs_;
  profile.model = graph.metadata.model;
  profile.mode = graph.metadata.mode;
  profile.optimizer = graph.metadata.optimizer;
  profile.optimizer_implementation = optimizer_implementation(costs, graph);
  profile.cache = cache_of(graph.metadata);
  profile.nodes = graph.node_count();
  profile.size = ParameterCount::of(graph);
  profile.saved = SavedBytes::of(graph);

  profile.operators = calls_by_operator(costs, graph);
  profile.uncovered = costs.flops().uncovered();
  profile.custom_operators = costs.custom.by_operator();
  for (uint32_t i = 0; i < graph.phase_count(); ++i) {
    const NodeFlops& phase = costs.flops().of_phase(PhaseId(i));
    if (i <= Graph::kOptimizer.index || phase != NodeFlops()) profile.flops[graph.phase_name(PhaseId(i))] = phase;
  }

  const c10::Device device = main_device(graph, options.device);
  profile.device = device;
  profile.timeline_ = std::make_shared<const MemoryTimeline>(costs.timeline(device));
  const MemoryTimeline& timeline = *profile.timeline_;
  profile.timeline_in_json = options.timeline;
  profile.peak = describe(graph, timeline.peak());
  if (const auto steady = steady_state(graph, timeline)) profile.steady_peak = describe(graph, steady->peak);
  profile.peak_rounded_bytes = timeline.rounded_peak();
  profile.phase_peaks = peaks_by_phase(graph, timeline);
  profile.peak_with_scratch = describe(graph, timeline.peak_with_scratch());
  profile.unknown_scratch = costs.scratch.unknown();
  profile.device_memory = memory_of(costs, device, options.memory, profile.out_of_memory);
  add_limit(profile, costs, options);
  profile.top_at_peak = live_storages(graph, timeline, timeline.peak().step, options.top_at_peak);
  for (const auto& [other, bytes] : bytes_by_device(graph)) {
    if (other == device || bytes == 0) continue;
    DevicePeak& peak = profile.other_devices.emplace_back();
    peak.device = other;
    peak.bytes = costs.timeline(other).peak().bytes;
    peak.memory = memory_of(costs, other, options.memory, peak.out_of_memory);
  }
  if (options.spec != nullptr) {
    profile.time_ = std::make_shared<const StepTime>(StepTime::of(costs, *options.spec, options.measured));
  }
  Communication communication = Communication::of(graph, {.interconnect = options.interconnect, .mesh = options.mesh});
  if (!communication.empty()) {
    profile.communication_ = std::make_shared<const Communication>(std::move(communication));
    if (profile.time_ && options.interconnect != nullptr) {
      profile.overlap_ =
          std::make_shared<const OverlappedStep>(OverlappedStep::of(graph, *profile.communication_, *profile.time_));
    }
  }
  profile.modules = modules_of(costs, timeline);
  profile.outputs = outputs_of(graph);
  return profile;
}

MemoryTimeline Profile::timeline(c10::Device other) const { return costs_->timeline(other); }
const Flops& Profile::node_flops() const { return costs_->flops(); }
const NodeScratch& Profile::scratch(NodeId node) const { return costs_->scratch.of(node); }
MemoryLayout Profile::memory_layout(const MemoryLayoutOptions& options) const {
  const MemoryLayoutOptions usual;
  if (options.device || options.alignment != usual.alignment || options.offline_limit != usual.offline_limit) {
    return shadowgraph::memory_layout(*costs_, options);
  }
  std::call_once(views_->plan_once, [&] { views_->plan = shadowgraph::memory_layout(*costs_, {.device = device}); });
  return views_->plan;
}
const Graph& Profile::graph() const { return costs_->graph(); }
SummaryTable Profile::summary(const SummaryOptions& options) const { return costs_->summary(options); }

}  // namespace shadowgraph
