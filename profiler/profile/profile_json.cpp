// Writes a profile as JSON: docs/profile.schema.json has the keys.
#include <nlohmann/json.hpp>

#include <span>

#include "ir/text/words.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

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
  if (live.dtype != c10::ScalarType::Undefined) {
    object["dtype"] = dtype_name(live.dtype);
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

json counts(std::span<const UncoveredOperator> operators) {
  json list = json::array();
  for (const UncoveredOperator& row : operators) list.push_back({{"op", row.op}, {"count", row.count}});
  return list;
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
  object["uncovered"] = counts(communication.uncovered());
  if (const OverlappedStep* overlap = profile.overlap()) {
    object["overlap"] = {{"seconds", overlap->seconds()},
                         {"compute_seconds", overlap->compute()},
                         {"exposed_seconds", overlap->exposed()},
                         {"slowed_seconds", overlap->slowed()},
                         {"waits_for_host_seconds", overlap->waits_for_host()},
                         {"at_least_seconds", overlap->at_least()},
                         {"at_most_seconds", overlap->at_most()},
                         {"causes", json::array()}};
    for (const ExposureCause& cause : overlap->causes()) {
      json entry{{"text", to_string(cause, profile.graph(), communication)},
                 {"kind", std::string(to_string(cause.kind))},
                 {"group", communication.groups()[cause.group].name},
                 {"phase", profile.graph().phase_name(cause.phase)},
                 {"waits", cause.waits},
                 {"seconds", cause.seconds}};
      if (cause.waiter) entry["waiter_phase"] = profile.graph().phase_name(*cause.waiter);
      object["overlap"]["causes"].push_back(std::move(entry));
    }
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
              {"allocated_after_steps", memory.allocated_after},
              {"segments", memory.segments},
              {"retries", memory.retries},
              {"assumed",
               {{"context_bytes", memory.context},
                {"cublas_workspace_bytes", memory.cublas_workspace},
                {"cublas_workspace_why", memory.options.assumptions.why_workspace()}}},
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

void add_model(json& object, const Profile& profile) {
  if (profile.model) object["model"] = *profile.model;
  object["device"] = device_text(profile.device);
  if (profile.mode) object["mode"] = std::string(to_string(*profile.mode));
  if (profile.optimizer) object["optimizer"] = *profile.optimizer;
  if (profile.capture_seconds) object["capture_seconds"] = *profile.capture_seconds;
  object["nodes"] = profile.nodes;
  object["operators"] = profile.operators;
  object["parameters"] = profile.size.parameters;
  object["parameter_bytes"] = profile.size.parameter_bytes;
  if (profile.size.whole_parameters != profile.size.parameters) {
    object["whole_parameters"] = profile.size.whole_parameters;
  }
  object["buffers"] = profile.size.buffers;
  object["buffer_bytes"] = profile.size.buffer_bytes;
}

void add_flops(json& object, const Profile& profile) {
  for (const auto& [phase, flops] : profile.flops) {
    object["flops"][phase] = flops.matmul;
    object["elementwise_flops"][phase] = flops.elementwise;
    object["transcendental"][phase] = flops.transcendental;
    object["flops_beyond_pytorch"][phase] = flops.beyond_pytorch;
  }
  object["uncovered_operators"] = counts(profile.uncovered);
  for (const CustomOperatorFigures& row : profile.custom_operators) {
    object["own_operators"].push_back({{"op", row.op},
                                       {"calls", row.calls},
                                       {"flops", row.flops},
                                       {"bytes", row.bytes},
                                       {"scratch_bytes", row.scratch},
                                       {"calls_without_answer", row.unknown}});
  }
}

json to_json(const PeakInfo& peak) {
  json object{{"bytes", peak.bytes},
              {"node", peak.node},
              {"op", peak.op},
              {"phase", peak.phase},
              {"by_kind", to_json(peak.by_kind)}};
  if (!peak.module.empty()) object["module"] = peak.module;
  if (!peak.source.empty()) object["source"] = peak.source;
  return object;
}

void add_live_bytes(json& object, const Profile& profile) {
  object["saved_bytes"] = profile.saved.all;
  object["saved_activation_bytes"] = profile.saved.activations;
  object["peak"] = to_json(profile.peak);
  if (profile.steady_peak) object["steady_peak"] = to_json(*profile.steady_peak);
  object["peak_rounded_bytes"] = profile.peak_rounded_bytes;
  for (const auto& [phase, peak] : profile.phase_peaks) {
    object["phase_peaks"][phase] = {
        {"bytes", peak.bytes}, {"node", peak.node}, {"op", peak.op}, {"by_kind", to_json(peak.by_kind)}};
  }
  object["peak_with_scratch"] = {{"bytes", profile.peak_with_scratch.bytes}, {"node", profile.peak_with_scratch.node}};
  object["unknown_scratch"] = counts(profile.unknown_scratch);
  object["top_at_peak"] = json::array();
  for (const LiveStorage& live : profile.top_at_peak) object["top_at_peak"].push_back(to_json(live));
}

void add_devices(json& object, const Profile& profile) {
  if (profile.device_memory) object["device_memory"] = to_json(*profile.device_memory);
  if (!profile.out_of_memory.empty()) object["out_of_memory"] = profile.out_of_memory;
  for (const DevicePeak& other : profile.other_devices) {
    json entry{{"device", device_text(other.device)}, {"peak_bytes", other.bytes}};
    if (other.memory) entry["device_memory"] = to_json(*other.memory);
    if (!other.out_of_memory.empty()) entry["out_of_memory"] = other.out_of_memory;
    object["other_devices"].push_back(std::move(entry));
  }
}

json to_json(const CacheInfo& cache) {
  return {{"step", cache.step},       {"kind", cache.kind},
          {"context", cache.context}, {"bytes_per_token", cache.bytes_per_token},
          {"bytes", cache.bytes},     {"positions", cache.positions}};
}

json to_json(const std::vector<OutputInfo>& outputs) {
  json list = json::array();
  for (const OutputInfo& output : outputs) {
    list.push_back(output.defined ? json{{"shape", output.shape},
                                         {"dtype", dtype_name(output.dtype)},
                                         {"stride", output.stride},
                                         {"device", device_text(output.device)}}
                                  : json());
  }
  return list;
}

json to_json(const std::vector<Finding>& findings) {
  json list = json::array();
  for (const Finding& finding : findings) {
    json entry{{"name", finding.name}, {"seen", finding.seen}, {"remedy", finding.remedy}};
    if (finding.bytes > 0) entry["bytes"] = finding.bytes;
    if (finding.seconds > 0) entry["seconds"] = finding.seconds;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

json to_json(const Profile& profile) {
  json object;
  if (const auto verdict = fits(profile)) object["fits"] = to_json(*verdict);
  add_model(object, profile);
  add_flops(object, profile);
  add_live_bytes(object, profile);
  add_devices(object, profile);
  if (profile.cache) object["cache"] = to_json(*profile.cache);
  if (profile.run) object["run"] = to_json(*profile.run);
  if (const StepTime* time = profile.time()) object["time"] = to_json(*time, profile);
  if (const Communication* sent = profile.communication()) object["communication"] = to_json(*sent, profile);
  const MemoryPlan plan = profile.plan();
  object["static_plan"] = {{"bytes", plan.bytes}, {"bound", plan.bound}, {"planner", plan.planner}};
  if (!profile.modules.empty()) object["modules"] = to_json(profile.modules, 0);
  if (profile.outputs) object["outputs"] = to_json(*profile.outputs);
  if (const auto assumed = assumptions_of(profile.graph()); !assumed.empty()) object["assumptions"] = assumed;
  object["findings"] = to_json(findings(profile));
  if (profile.timeline_in_json) object["timeline"] = to_json(profile.timeline());
  return object;
}

}  // namespace shadowgraph
