#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

#include "ir/analysis/module_tree.h"
#include "ir/text/words.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/time.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

std::string device_name(c10::Device device) {
  std::string name;
  append_device(name, device);
  return name;
}

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
                           .dtype = dtype_name(value.dtype),
                           .stride = {strides.begin(), strides.end()},
                           .device = device_name(value.device())});
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
  auto figures = group_figures(costs.graph, costs.kinds, costs.flops(), costs.modules().of_node, count, parents);
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

json to_json(const BytesByKind& bytes) {
  json object = json::object();
  for (size_t kind = 0; kind < bytes.size(); ++kind) {
    object[std::string(to_string(static_cast<StorageKind>(kind)))] = bytes[kind];
  }
  return object;
}

// The tree is at most 64 deep (module_tree.cpp).
json to_json(const std::vector<ModuleProfile>& modules, uint32_t at) {
  const ModuleProfile& module = modules[at];
  const GroupFigures& f = module.figures;
  json object{
      {"path", module.path},
      {"calls", module.calls},
      {"nodes", {{"forward", f.forward_nodes}, {"backward", f.backward_nodes}}},
      {"flops", {{"forward", f.forward_flops.matmul}, {"backward", f.backward_flops.matmul}}},
      {"elementwise_flops", {{"forward", f.forward_flops.elementwise}, {"backward", f.backward_flops.elementwise}}},
      {"transcendental", {{"forward", f.forward_flops.transcendental}, {"backward", f.backward_flops.transcendental}}},
      {"parameter_bytes", f.parameters},
      {"saved_activation_bytes", f.incremental},
      {"output_bytes", f.output},
      {"temporary_bytes", f.temporary},
      {"backward_bytes", f.backward},
      {"peak_bytes", module.peak}};
  if (!module.class_name.empty()) object["class"] = module.class_name;
  if (!module.children.empty()) {
    json& children = object["children"] = json::array();
    for (uint32_t child : module.children) children.push_back(to_json(modules, child));
  }
  return object;
}

json to_json(const LiveStorage& live) {
  json object{{"bytes", live.bytes}, {"kind", to_string(live.kind)}};
  if (!live.producer.empty()) object["op"] = live.producer;
  if (!live.module.empty()) object["module"] = live.module;
  if (!live.source.empty()) object["source"] = live.source;
  if (!live.dtype.empty()) {
    object["dtype"] = live.dtype;
    object["shape"] = live.shape;
  }
  return object;
}

json to_json(const StepTime& time, const Profile& profile) {
  json object{
      {"spec", time.spec()},         {"seconds", time.seconds()},         {"device_seconds", time.busy()},
      {"host_seconds", time.host()}, {"waiting_seconds", time.waiting()}, {"flop_utilization", time.flop_utilization()},
      {"calls", time.calls()}};
  for (uint32_t i = 0; i < profile.graph().phase_count(); ++i) {
    if (time.seconds(PhaseId(i)) > 0)
      object["phases"][profile.graph().phase_name(PhaseId(i))] = time.seconds(PhaseId(i));
  }
  for (int i = 0; i < kKernelClassCount; ++i) {
    const auto kind = static_cast<KernelClass>(i);
    if (time.seconds(kind) > 0) object["classes"][std::string(to_string(kind))] = time.seconds(kind);
  }
  return object;
}

json to_json(const CommunicationSum& sum, bool seconds) {
  json object{{"calls", sum.calls}, {"payload_bytes", sum.payload}, {"wire_bytes", sum.wire}};
  if (seconds) object["seconds"] = sum.seconds;
  return object;
}

json to_json(const Communication& communication, const Profile& profile) {
  const bool seconds = communication.has_seconds();
  json object = to_json(communication.total(), seconds);
  if (seconds) object["interconnect"] = communication.interconnect();
  object["groups"] = json::array();
  for (uint32_t i = 0; i < communication.groups().size(); ++i) {
    const ProcessGroupInfo& group = communication.groups()[i];
    json entry = to_json(communication.of_group(i), seconds);
    entry["name"] = group.name;
    entry["size"] = group.size;
    entry["rank"] = group.rank;
    if (!group.ranks.empty()) entry["ranks"] = group.ranks;
    if (!group.axis.empty()) entry["axis"] = group.axis;
    object["groups"].push_back(std::move(entry));
  }
  object["kinds"] = json::object();
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (const auto sum = communication.of(kind); sum.calls > 0) {
      object["kinds"][std::string(to_string(kind))] = to_json(sum, seconds);
    }
  }
  object["phases"] = json::object();
  for (uint32_t i = 0; i < profile.graph().phase_count(); ++i) {
    if (const auto sum = communication.of(PhaseId(i)); sum.calls > 0) {
      object["phases"][profile.graph().phase_name(PhaseId(i))] = to_json(sum, seconds);
    }
  }
  object["modules"] = json::array();
  for (const auto& module : communication.by_module()) {
    object["modules"].push_back({{"path", module.path},
                                 {"forward", to_json(module.forward, seconds)},
                                 {"backward", to_json(module.backward, seconds)}});
  }
  object["uncovered"] = json::array();
  for (const UncoveredOperator& row : communication.uncovered()) {
    object["uncovered"].push_back({{"op", row.op}, {"count", row.count}});
  }
  if (const OverlappedStep* overlap = profile.overlap()) {
    object["overlap"] = {{"seconds", overlap->seconds()},
                         {"compute_seconds", overlap->compute()},
                         {"exposed_seconds", overlap->exposed()},
                         {"at_least_seconds", overlap->at_least()},
                         {"at_most_seconds", overlap->at_most()}};
  }
  return object;
}

json to_json(const DeviceMemory& memory) {
  json object{{"requested_peak_bytes", memory.requested_peak},
              {"allocated_peak_bytes", memory.allocated_peak},
              {"reserved_peak_bytes", memory.reserved_peak},
              {"fragmentation_bytes", memory.fragmentation()},
              {"stuck_bytes", memory.stuck_at_peak},
              {"reserved_after_steps", memory.reserved_after},
              {"segments", memory.segments},
              {"retries", memory.retries},
              {"assumed", {{"context_bytes", memory.context}, {"cublas_workspace_bytes", memory.cublas_workspace}}},
              {"footprint_bytes", memory.footprint()}};
  if (memory.nccl > 0) object["assumed"]["nccl_bytes"] = memory.nccl;
  return object;
}

json to_json(const StepMemory& step) {
  json object{{"peak_bytes", step.peak}, {"op", step.op}, {"phase", step.phase}};
  if (!step.module.empty()) object["module"] = step.module;
  if (step.allocated_peak) object["allocated_peak_bytes"] = *step.allocated_peak;
  if (step.reserved_peak) object["reserved_peak_bytes"] = *step.reserved_peak;
  if (step.reserved_after) object["reserved_bytes"] = *step.reserved_after;
  return object;
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

json to_json(const RunMemory& run) {
  json object{
      {"steps", run.steps.size()}, {"first_step", to_json(run.steps[0])}, {"steady_state", to_json(run.steady())}};
  if (run.steps.size() > 1) object["second_step"] = to_json(run.steps[1]);
  object["peak_bytes"] = run.peak();
  if (run.reserved_peak()) object["reserved_peak_bytes"] = *run.reserved_peak();
  if (!run.out_of_memory.empty()) object["out_of_memory"] = run.out_of_memory;
  return object;
}

json to_json(const MemoryTimeline& timeline) {
  json object{{"kinds", json::array()}, {"live", json::array()}, {"total", json::array()}, {"rounded", json::array()}};
  for (int kind = 0; kind < kStorageKindCount; ++kind) {
    object["kinds"].push_back(to_string(static_cast<StorageKind>(kind)));
  }
  for (uint32_t step = 0; step < timeline.steps(); ++step) {
    object["live"].push_back(timeline.live(step));
    object["total"].push_back(timeline.total(step));
    object["rounded"].push_back(timeline.rounded_total(step));
  }
  return object;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

Profile profile(const Graph& graph, const ProfileOptions& options) {
  Profile profile;
  profile.costs_ = std::make_shared<const ProgramCosts>(graph, options.measured);
  profile.views_ = std::make_shared<ProfileViews>();
  const ProgramCosts& costs = *profile.costs_;
  profile.model = graph.metadata.model;
  profile.mode = graph.metadata.mode;
  profile.optimizer = graph.metadata.optimizer;
  profile.cache = cache_of(graph.metadata);
  profile.nodes = graph.node_count();
  profile.size = ParameterCount::of(graph);
  profile.saved = SavedBytes::of(graph);

  IdMap<TargetId, int64_t> calls;
  for (const NodeId node : costs.nodes) ++calls[graph.node(node).target];
  for (uint32_t i = 0; i < calls.size(); ++i) {
    if (const int64_t count = std::as_const(calls)[TargetId(i)]; count > 0) {
      profile.operators[graph.target(TargetId(i)).name()] += count;
    }
  }

  profile.uncovered = costs.flops().uncovered();
  profile.custom_operators = costs.custom.by_operator();
  for (uint32_t i = 0; i < graph.phase_count(); ++i) {
    const NodeFlops& phase = costs.flops().of_phase(PhaseId(i));
    if (i <= Graph::kOptimizer.index || phase != NodeFlops()) profile.flops[graph.phase_name(PhaseId(i))] = phase;
  }

  const c10::Device device = main_device(graph, options.device);
  profile.device = device_name(device);
  profile.timeline_ = std::make_shared<const MemoryTimeline>(costs.timeline(device));
  const MemoryTimeline& timeline = *profile.timeline_;
  profile.timeline_in_json = options.timeline;
  profile.peak = describe(graph, timeline.peak());
  profile.peak_rounded_bytes = timeline.rounded_peak();
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
  for (const auto& [phase, most] : peaks) profile.phase_peaks[graph.phase_name(phase)] = describe(graph, most);
  profile.peak_with_scratch = describe(graph, timeline.peak_with_scratch());
  profile.unknown_scratch = costs.scratch.unknown();
  // Each device has an allocator of its own.
  const auto memory_of = [&](c10::Device which, std::string& out_of_memory) -> std::optional<DeviceMemory> {
    if (which.is_cpu()) return std::nullopt;
    DeviceMemoryOptions memory = options.memory;
    memory.device = which;
    try {
      return device_memory(costs, memory);
    } catch (const OutOfMemoryError& error) {
      out_of_memory = error.what();
      return std::nullopt;
    }
  };
  profile.device_memory = memory_of(device, profile.out_of_memory);
  profile.top_at_peak = live_storages(graph, timeline, timeline.peak().step, options.top_at_peak);
  for (const auto& [other, bytes] : bytes_by_device(graph)) {
    if (other == device || bytes == 0) continue;
    DevicePeak& peak = profile.other_devices.emplace_back();
    peak.device = device_name(other);
    peak.bytes = costs.timeline(other).peak().bytes;
    peak.memory = memory_of(other, peak.out_of_memory);
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
MemoryPlan Profile::plan(const PlanOptions& options) const {
  const PlanOptions usual;
  if (options.device || options.alignment != usual.alignment || options.offline_limit != usual.offline_limit) {
    return plan_memory(*costs_, options);
  }
  std::call_once(views_->plan_once, [&] { views_->plan = plan_memory(*costs_, {.device = c10::Device(device)}); });
  return views_->plan;
}
const Graph& Profile::graph() const { return costs_->graph; }
SummaryTable Profile::summary(const SummaryOptions& options) const { return costs_->summary(options); }

json to_json(const Profile& profile) {
  json object;
  if (profile.model) object["model"] = *profile.model;
  object["device"] = profile.device;
  if (profile.mode) object["mode"] = std::string(to_string(*profile.mode));
  if (profile.optimizer) object["optimizer"] = *profile.optimizer;
  if (profile.capture_seconds) object["capture_seconds"] = *profile.capture_seconds;
  object["nodes"] = profile.nodes;
  object["operators"] = profile.operators;
  object["parameters"] = profile.size.parameters;
  object["parameter_bytes"] = profile.size.parameter_bytes;
  object["buffers"] = profile.size.buffers;
  object["buffer_bytes"] = profile.size.buffer_bytes;
  for (const auto& [phase, flops] : profile.flops) {
    object["flops"][phase] = flops.matmul;
    object["elementwise_flops"][phase] = flops.elementwise;
    object["transcendental"][phase] = flops.transcendental;
    object["flops_beyond_pytorch"][phase] = flops.beyond_pytorch;
  }
  object["uncovered_operators"] = json::array();
  for (const UncoveredOperator& row : profile.uncovered) {
    object["uncovered_operators"].push_back({{"op", row.op}, {"count", row.count}});
  }
  for (const CustomOperatorFigures& row : profile.custom_operators) {
    object["own_operators"].push_back({{"op", row.op},
                                       {"calls", row.calls},
                                       {"flops", row.flops},
                                       {"bytes", row.bytes},
                                       {"scratch_bytes", row.scratch},
                                       {"calls_without_answer", row.unknown}});
  }
  object["saved_bytes"] = profile.saved.all;
  object["saved_activation_bytes"] = profile.saved.activations;
  object["peak"] = {{"bytes", profile.peak.bytes},
                    {"node", profile.peak.node},
                    {"op", profile.peak.op},
                    {"phase", profile.peak.phase},
                    {"by_kind", to_json(profile.peak.by_kind)}};
  if (!profile.peak.module.empty()) object["peak"]["module"] = profile.peak.module;
  if (!profile.peak.source.empty()) object["peak"]["source"] = profile.peak.source;
  object["peak_rounded_bytes"] = profile.peak_rounded_bytes;
  for (const auto& [phase, peak] : profile.phase_peaks) {
    object["phase_peaks"][phase] = {
        {"bytes", peak.bytes}, {"node", peak.node}, {"op", peak.op}, {"by_kind", to_json(peak.by_kind)}};
  }
  object["peak_with_scratch"] = {{"bytes", profile.peak_with_scratch.bytes}, {"node", profile.peak_with_scratch.node}};
  object["unknown_scratch"] = json::array();
  for (const UncoveredOperator& row : profile.unknown_scratch) {
    object["unknown_scratch"].push_back({{"op", row.op}, {"count", row.count}});
  }
  if (profile.device_memory) object["device_memory"] = to_json(*profile.device_memory);
  if (!profile.out_of_memory.empty()) object["out_of_memory"] = profile.out_of_memory;
  if (profile.cache) {
    const CacheInfo& cache = *profile.cache;
    object["cache"] = {{"step", cache.step},       {"kind", cache.kind},
                       {"context", cache.context}, {"bytes_per_token", cache.bytes_per_token},
                       {"bytes", cache.bytes},     {"positions", cache.positions}};
  }
  if (profile.run) object["run"] = to_json(*profile.run);
  if (const StepTime* time = profile.time()) object["time"] = to_json(*time, profile);
  if (const Communication* sent = profile.communication()) object["communication"] = to_json(*sent, profile);
  const MemoryPlan plan = profile.plan();
  object["static_plan"] = {{"bytes", plan.bytes}, {"bound", plan.bound}, {"planner", plan.planner}};
  object["top_at_peak"] = json::array();
  for (const LiveStorage& live : profile.top_at_peak) object["top_at_peak"].push_back(to_json(live));
  if (!profile.other_devices.empty()) {
    for (const DevicePeak& other : profile.other_devices) {
      json entry{{"device", other.device}, {"peak_bytes", other.bytes}};
      if (other.memory) entry["device_memory"] = to_json(*other.memory);
      if (!other.out_of_memory.empty()) entry["out_of_memory"] = other.out_of_memory;
      object["other_devices"].push_back(std::move(entry));
    }
  }
  if (!profile.modules.empty()) object["modules"] = to_json(profile.modules, 0);
  if (profile.outputs) {
    object["outputs"] = json::array();
    for (const OutputInfo& output : *profile.outputs) {
      object["outputs"].push_back(output.defined ? json{{"shape", output.shape},
                                                        {"dtype", output.dtype},
                                                        {"stride", output.stride},
                                                        {"device", output.device}}
                                                 : json());
    }
  }
  object["findings"] = json::array();
  for (const Finding& finding : findings(profile)) {
    json entry{{"name", finding.name}, {"seen", finding.seen}, {"remedy", finding.remedy}};
    if (finding.bytes > 0) entry["bytes"] = finding.bytes;
    if (finding.seconds > 0) entry["seconds"] = finding.seconds;
    object["findings"].push_back(std::move(entry));
  }
  if (profile.timeline_in_json) object["timeline"] = to_json(profile.timeline());
  return object;
}

namespace {

// Writes what is beyond live bytes: scratch inside kernels, and what the device holds.
std::string memory_text(const Profile& profile) {
  std::string text;
  const auto row = [&](const char* name, int64_t bytes, const std::string& what) {
    text += fmt::format("  {:<17}{:>12}  {}\n", name, human_bytes(bytes), what);
  };
  const int64_t inside = profile.peak_with_scratch.bytes;
  int64_t unknown = 0;
  for (const UncoveredOperator& op : profile.unknown_scratch) unknown += op.count;
  if (inside > profile.peak.bytes) {
    row("with scratch", inside,
        fmt::format("at node {}: {}", profile.peak_with_scratch.node, profile.peak_with_scratch.op));
  }
  if (unknown > 0) {
    text += fmt::format("  at least: what {} calls of {} operators take inside their kernels is unknown (", unknown,
                        profile.unknown_scratch.size());
    std::vector<UncoveredOperator> most = profile.unknown_scratch;
    std::stable_sort(most.begin(), most.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
    for (size_t i = 0; i < most.size() && i < 3; ++i) {
      text += fmt::format("{}{} x{}", i == 0 ? "" : ", ", most[i].op, most[i].count);
    }
    text += most.size() > 3 ? ", ...)\n" : ")\n";
  }
  if (profile.device_memory) {
    const DeviceMemory& memory = *profile.device_memory;
    row("allocated", memory.allocated_peak,
        fmt::format("in {} step{}, cuBLAS's workspace included", memory.reserved_after.size(),
                    memory.reserved_after.size() == 1 ? "" : "s"));
    row("reserved", memory.reserved_peak,
        fmt::format("by the caching allocator, {} of it free but cached", human_bytes(memory.fragmentation())));
    row("on the device", memory.footprint(),
        fmt::format("with an assumed CUDA context of {}{}", human_bytes(memory.context),
                    memory.nccl > 0 ? fmt::format(" and {} of NCCL's buffers", human_bytes(memory.nccl)) : ""));
  }
  if (!profile.out_of_memory.empty()) text += "  does not fit: " + profile.out_of_memory + "\n";
  return text;
}

std::string time_text(const StepTime& time) {
  std::string text =
      fmt::format("\n{:<15}{} a step, estimated for {}\n", "time", human_seconds(time.seconds()), time.spec());
  if (time.host() > 0) {
    text += fmt::format("  {:<13}{} of it the device works, {} it waits for the host ({} calls)\n", "device",
                        human_seconds(time.busy()), human_seconds(time.waiting()), time.calls());
  }
  text +=
      fmt::format("  {:<13}{:.1f} % of the peak for matrix products\n", "utilization", 100 * time.flop_utilization());
  std::vector<std::pair<double, KernelClass>> classes;
  for (int i = 0; i < kKernelClassCount; ++i) {
    const auto kind = static_cast<KernelClass>(i);
    if (time.seconds(kind) > 0) classes.emplace_back(time.seconds(kind), kind);
  }
  std::sort(classes.begin(), classes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t i = 0; i < classes.size() && i < 6; ++i) {
    text += fmt::format("  {:<28}{:>12}  {:>4.1f} %\n", to_string(classes[i].second), human_seconds(classes[i].first),
                        time.busy() > 0 ? 100 * classes[i].first / time.busy() : 0);
  }
  return text;
}

std::string communication_text(const Communication& communication, const OverlappedStep* overlap) {
  const CommunicationSum total = communication.total();
  const auto seconds = [&](const CommunicationSum& sum) {
    return communication.has_seconds() ? human_seconds(sum.seconds) : std::string();
  };
  std::string text = fmt::format("\n{:<15}{} sent by this process in {} collectives", "communication",
                                 human_bytes(total.wire), total.calls);
  if (communication.has_seconds()) {
    text += fmt::format(", {} on {}", human_seconds(total.seconds), communication.interconnect());
  } else {
    text += "; no figures of the links, so no seconds";
  }
  text += fmt::format("\n  {:<28}{:>8}{:>14}{:>14}{:>12}\n", "", "calls", "payload", "sent", "time");
  const auto row = [&](const std::string& name, const CommunicationSum& sum) {
    text += fmt::format("  {:<28}{:>8}{:>14}{:>14}{:>12}\n", name, sum.calls, human_bytes(sum.payload),
                        human_bytes(sum.wire), seconds(sum));
  };
  for (int i = 0; i < kCollectiveKindCount; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    if (const auto sum = communication.of(kind); sum.calls > 0) row(std::string(to_string(kind)), sum);
  }
  for (uint32_t i = 0; i < communication.groups().size(); ++i) {
    const ProcessGroupInfo& group = communication.groups()[i];
    row(fmt::format("group {} of {}", group.name, group.size), communication.of_group(i));
  }
  if (overlap != nullptr) {
    text += fmt::format("  {:<13}{} a step, {} of it waiting for collectives; between {} and {}\n", "overlapped",
                        human_seconds(overlap->seconds()), human_seconds(overlap->exposed()),
                        human_seconds(overlap->at_least()), human_seconds(overlap->at_most()));
  }
  for (const UncoveredOperator& row : communication.uncovered()) {
    text += fmt::format("  not in these sums: {} x{}\n", row.op, row.count);
  }
  return text;
}

}  // namespace

std::string to_text(const Profile& profile) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) { text += fmt::format("{:<15}{}\n", name, value); };
  const auto optional_line = [&](const char* name, const std::optional<std::string>& value) {
    if (value) line(name, *value);
  };
  optional_line("model", profile.model);
  line("device", profile.device);
  if (profile.mode) line("mode", std::string(to_string(*profile.mode)));
  optional_line("optimizer", profile.optimizer);
  line("nodes", exact_count(profile.nodes));
  if (profile.cache) {
    const CacheInfo& cache = *profile.cache;
    line("cache", fmt::format("{} after {} of {} tokens, {} bytes a token and sequence, {}{}", human_bytes(cache.bytes),
                              cache.step, exact_count(cache.context), exact_count(cache.bytes_per_token), cache.kind,
                              cache.context > cache.positions && cache.positions > 0
                                  ? fmt::format("; beyond the {} positions the model was trained on",
                                                exact_count(cache.positions))
                                  : ""));
  }
  line("parameters",
       fmt::format("{} ({})", exact_count(profile.size.parameters), human_bytes(profile.size.parameter_bytes)));
  if (profile.size.buffers > 0) {
    line("buffers", fmt::format("{} ({})", exact_count(profile.size.buffers), human_bytes(profile.size.buffer_bytes)));
  }
  line("saved", fmt::format("{} for backward, {} of it activations", human_bytes(profile.saved.all),
                            human_bytes(profile.saved.activations)));

  const PeakInfo& peak = profile.peak;
  std::string where = peak.op;
  if (!peak.module.empty()) where += " of " + peak.module;
  if (!peak.source.empty()) where += ", " + peak.source;
  line("peak", fmt::format("{} ({} bytes) in {}, at node {}: {}", human_bytes(peak.bytes), exact_count(peak.bytes),
                           peak.phase.empty() ? "no phase" : peak.phase, peak.node, where));
  for (size_t kind = 0; kind < peak.by_kind.size(); ++kind) {
    if (peak.by_kind[kind] == 0) continue;
    text += fmt::format("  {:<17}{:>12}\n", to_string(static_cast<StorageKind>(kind)), human_bytes(peak.by_kind[kind]));
  }
  text += fmt::format("  {:<17}{:>12}\n", "in 512 B blocks", human_bytes(profile.peak_rounded_bytes));
  if (profile.phase_peaks.size() > 1) {
    std::string phases;
    for (const auto& [phase, most] : profile.phase_peaks) {
      if (!phase.empty()) phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", phase, human_bytes(most.bytes));
    }
    text += fmt::format("  {:<17}{}\n", "by phase", phases);
  }
  text += memory_text(profile);
  for (const DevicePeak& other : profile.other_devices) {
    text += fmt::format("  {:<17}{:>12}{}\n", "also on " + other.device, human_bytes(other.bytes),
                        other.memory                   ? "  reserved " + human_bytes(other.memory->reserved_peak)
                        : !other.out_of_memory.empty() ? "  does not fit: " + other.out_of_memory
                                                       : "");
  }
  if (profile.run) text += "\n" + to_text(*profile.run);

  text += fmt::format("\n{:<15}{:>12}{:>14}{:>17}\n", "FLOPs", "matmul", "elementwise", "transcendental");
  static constexpr const char* kFirst[] = {"forward", "backward", "optimizer"};
  const auto flops_line = [&](const std::string& phase, const NodeFlops& flops) {
    text += fmt::format("  {:<13}{:>12}{:>14}{:>17}\n", phase, human_count(flops.matmul),
                        human_count(flops.elementwise), human_count(flops.transcendental));
  };
  for (const char* phase : kFirst) {
    if (const auto found = profile.flops.find(phase); found != profile.flops.end()) flops_line(phase, found->second);
  }
  int64_t beyond = 0;
  for (const auto& [phase, flops] : profile.flops) {
    beyond = saturating_add(beyond, flops.beyond_pytorch);
    if (std::find(std::begin(kFirst), std::end(kFirst), phase) == std::end(kFirst)) flops_line(phase, flops);
  }
  if (beyond > 0)
    text += fmt::format("  of matmul, {} in operators that FlopCounterMode does not count\n", human_count(beyond));
  if (profile.time() != nullptr) text += time_text(*profile.time());
  if (profile.communication() != nullptr) text += communication_text(*profile.communication(), profile.overlap());
  if (!profile.uncovered.empty()) {
    text += "\nno FLOP formula, not in the sums above:\n";
    for (const UncoveredOperator& row : profile.uncovered) text += fmt::format("  {} x{}\n", row.op, row.count);
  }

  if (!profile.custom_operators.empty()) {
    text += fmt::format("\n{:<30}{:>8}{:>12}{:>12}{:>12}\n", "own operators", "calls", "FLOPs", "moved", "scratch");
    for (const CustomOperatorFigures& row : profile.custom_operators) {
      text += fmt::format("  {:<28}{:>8}{:>12}{:>12}{:>12}\n", row.op, row.calls, human_count(row.flops),
                          human_bytes(row.bytes), human_bytes(row.scratch));
      if (row.unknown > 0) text += fmt::format("    {} calls without an answer from its rules\n", row.unknown);
    }
  }

  if (!profile.top_at_peak.empty()) {
    text += "\nlargest at the peak:\n";
    for (const LiveStorage& live : profile.top_at_peak) {
      const std::string tensor = live.dtype.empty() ? "" : live.dtype + shape_text(live.shape);
      text += fmt::format("  {:>12}  {:<15} {:<30} {}{}\n", human_bytes(live.bytes), to_string(live.kind), tensor,
                          live.module.empty() ? "" : live.module + " ", live.producer);
    }
  }
  if (const auto found = findings(profile); !found.empty()) text += "\nfindings:\n" + to_text(found);
  return text;
}

}  // namespace shadowgraph
