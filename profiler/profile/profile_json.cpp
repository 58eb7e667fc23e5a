// Writes a profile as JSON; the schema is docs/profile.schema.json.
#include <nlohmann/json.hpp>

#include <span>

#include "ir/text/words.h"
#include "profiler/profile/metrics.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

// Recursion is bounded: the tree is at most 64 deep (module_tree.cpp).
json to_json(const std::vector<ModuleProfile>& modules, uint32_t at) {
  const ModuleProfile& module = modules[at];
  const GroupCosts& f = module.figures;
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

json counts(std::span<const UncoveredOperator> operators) {
  json list = json::array();
  for (const UncoveredOperator& row : operators) list.push_back({{"op", row.op}, {"count", row.count}});
  return list;
}

void add_time(json& object, const StepTime& time, const Profile& profile) {
  object["spec"] = time.spec();
  for (uint32_t i = 0; i < profile.graph().phase_count(); ++i) {
    if (const double seconds = time.per_step(time.seconds(PhaseId(i))); seconds > 0)
      object["phases"][profile.graph().phase_name(PhaseId(i))] = seconds;
  }
  for (const auto& [kind, name] : enum_names(KernelClass{})) {
    if (time.seconds(kind) > 0) object["classes"][std::string(name)] = time.per_step(time.seconds(kind));
  }
  object["uncovered"] = counts(time.uncovered());
}

json to_json(const CommunicationSum& sum, bool seconds) {
  json object;
  add_metrics(object, communication_metrics(), sum);
  if (seconds) object["seconds"] = sum.seconds;
  return object;
}

void add_communication(json& object, const Communication& communication, const Profile& profile) {
  const bool seconds = communication.has_seconds();
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
  for (const auto& [kind, name] : enum_names(CollectiveKind{})) {
    if (const auto sum = communication.of(kind); sum.calls > 0) object["kinds"][name] = to_json(sum, seconds);
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
    json& causes = object["overlap"]["causes"] = json::array();
    for (const ExposureCause& cause : overlap->causes()) {
      json entry{{"text", to_string(cause, profile.graph(), communication)},
                 {"kind", std::string(to_string(cause.kind))},
                 {"group", communication.groups()[cause.group].name},
                 {"phase", profile.graph().phase_name(cause.phase)},
                 {"waits", cause.waits},
                 {"seconds", overlap->per_step(cause.seconds)}};
      if (cause.waiter) entry["waiter_phase"] = profile.graph().phase_name(*cause.waiter);
      causes.push_back(std::move(entry));
    }
  }
}

void add_steps(json& object, const DeviceMemory& memory) {
  object["reserved_after_steps"] = memory.reserved_after;
  object["allocated_after_steps"] = memory.allocated_after;
  object["assumed"]["cublas_workspace_why"] = memory.options.assumptions.why_workspace();
}

json to_json(const StepMemory& step) {
  json object{{"peak_bytes", step.peak}, {"op", step.op}, {"phase", step.phase}};
  if (!step.module.empty()) object["module"] = step.module;
  if (step.allocated_peak) object["allocated_peak_bytes"] = *step.allocated_peak;
  if (step.reserved_peak) object["reserved_peak_bytes"] = *step.reserved_peak;
  if (step.reserved_after) object["reserved_bytes"] = *step.reserved_after;
  return object;
}

json to_json(const MemoryTimeline& timeline) {
  json object{{"kinds", enum_words<StorageKind>()},
              {"live", json::array()},
              {"total", json::array()},
              {"rounded", json::array()}};
  for (uint32_t step = 0; step < timeline.steps(); ++step) {
    object["live"].push_back(timeline.live(step));
    object["total"].push_back(timeline.total(step));
    object["rounded"].push_back(timeline.rounded_total(step));
  }
  return object;
}

void add_flops(json& object, const Profile& profile) {
  for (const auto& [phase, flops] : profile.flops) {
    object["flops"][phase] = flops.matmul;
    object["elementwise_flops"][phase] = flops.elementwise;
    object["transcendental"][phase] = flops.transcendental;
    object["flops_beyond_pytorch"][phase] = flops.beyond_pytorch;
  }
  object["uncovered_operators"] = counts(profile.uncovered);
  for (const CustomOperatorCosts& row : profile.custom_operators) {
    object["custom_operators"].push_back({{"op", row.op},
                                          {"calls", row.calls},
                                          {"flops", row.flops},
                                          {"bytes", row.bytes},
                                          {"scratch_bytes", row.scratch},
                                          {"calls_without_cost", row.unknown}});
  }
}

void add_place(json& object, const PeakInfo& peak) {
  object["op"] = peak.op;
  object["phase"] = peak.phase;
  object["by_kind"] = kinds_json(peak.by_kind);
  if (!peak.module.empty()) object["module"] = peak.module;
  if (!peak.source.empty()) object["source"] = peak.source;
}

void add_live_bytes(json& object, const Profile& profile) {
  add_place(object["peak"], profile.peak);
  if (profile.steady_peak) {
    add_metrics(object["steady_peak"], peak_metrics(), *profile.steady_peak);
    add_place(object["steady_peak"], *profile.steady_peak);
  }
  for (const auto& [phase, peak] : profile.phase_peaks) {
    json& entry = object["phase_peaks"][phase] = {{"op", peak.op}, {"by_kind", kinds_json(peak.by_kind)}};
    add_metrics(entry, peak_metrics(), peak);
  }
  object["unknown_scratch"] = counts(profile.unknown_scratch);
  object["top_at_peak"] = json::array();
  for (const LiveStorage& live : profile.top_at_peak) object["top_at_peak"].push_back(to_json(live));
}

void add_devices(json& object, const Profile& profile) {
  if (profile.device_memory) add_steps(object["device_memory"], *profile.device_memory);
  if (!profile.out_of_memory.empty()) object["out_of_memory"] = profile.out_of_memory;
  for (const DevicePeak& other : profile.other_devices) {
    json entry{{"device", device_text(other.device)}, {"peak_bytes", other.bytes}};
    if (other.memory) {
      add_metrics(entry["device_memory"], device_memory_metrics(), *other.memory);
      add_steps(entry["device_memory"], *other.memory);
    }
    if (!other.out_of_memory.empty()) entry["out_of_memory"] = other.out_of_memory;
    object["other_devices"].push_back(std::move(entry));
  }
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
  for (const ProfileMetric& figure : profile_metrics()) add_metric(object, figure.key, figure.value(profile));
  if (const auto verdict = fits(profile)) object["fits"] = to_json(*verdict);
  if (profile.model) object["model"] = *profile.model;
  object["device"] = device_text(profile.device);
  if (profile.mode) object["mode"] = std::string(to_string(*profile.mode));
  if (profile.optimizer) object["optimizer"] = *profile.optimizer;
  if (profile.optimizer_implementation) object["optimizer_implementation"] = *profile.optimizer_implementation;
  object["operators"] = profile.operators;
  add_flops(object, profile);
  add_live_bytes(object, profile);
  add_devices(object, profile);
  if (profile.cache) object["cache"].update({{"step", profile.cache->step}, {"kind", profile.cache->kind}});
  if (const auto& run = profile.run) {
    json& entry = object["run"];
    entry["first_step"] = to_json(run->steps[0]);
    entry["steady_state"] = to_json(run->steady());
    if (run->steps.size() > 1) entry["second_step"] = to_json(run->steps[1]);
    if (!run->out_of_memory.empty()) entry["out_of_memory"] = run->out_of_memory;
  }
  if (const StepTime* time = profile.time()) add_time(object["time"], *time, profile);
  if (const Communication* sent = profile.communication()) add_communication(object["communication"], *sent, profile);
  object["memory_layout"]["planner"] = profile.memory_layout().planner;
  if (!profile.modules.empty()) object["modules"] = to_json(profile.modules, 0);
  if (profile.outputs) object["outputs"] = to_json(*profile.outputs);
  if (const auto assumed = assumptions_of(profile.graph()); !assumed.empty()) object["assumptions"] = assumed;
  object["findings"] = to_json(findings(profile));
  if (profile.timeline_in_json) object["timeline"] = to_json(profile.timeline());
  return object;
}

}  // namespace shadowgraph
