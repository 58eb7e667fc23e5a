// Turns a request into the options of shard(), and a captured step into one that can be cut.
#include "shadowgraph/sharding/plan_step.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

#include "shadowgraph/sharding/split_losses.h"
#include "sharding/plan/recompute_rounds.h"

namespace shadowgraph {

UnknownDeviceError::UnknownDeviceError(c10::Device device)
    : StepRequestError(fmt::format("no figures are known of {} devices; give some: StepRequest::device", device.str())),
      device_(device) {}

namespace {

// Asks here what shard() would only find out after the solver's time.
void check_request(const StepRequest& request) {
  if (request.mesh.axes.empty()) throw StepRequestError("sharding needs a mesh: StepRequest::mesh");
  if (request.rank < 0 || request.rank >= request.mesh.size()) {
    throw StepRequestError(fmt::format("the mesh {} has no rank {}", request.mesh.to_string(), request.rank));
  }
  if (request.recompute && !request.memory) {
    throw StepRequestError("sharding and recomputing together need a limit of memory: StepRequest::memory (--memory)");
  }
}

DeviceSpec device_of_step(const StepRequest& request, const Graph& graph) {
  if (request.device) return *request.device;
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCUDA, 0));
  std::optional<DeviceSpec> found = DeviceSpec::find("", device.type());
  if (!found) throw UnknownDeviceError(device);
  return std::move(*found);
}

Interconnect links_of_step(const StepRequest& request, const DeviceSpec& device) {
  if (request.links) return *request.links;
  // One machine's device has no links around it. A mesh of such devices is joined by the slowest that are known.
  return Interconnect::around(device.name).value_or(Interconnect::named("pcie4"));
}

ShardOptions options_of_search(const StepRequest& request) {
  ShardOptions options{.compare = request.compare,
                       .explain = request.explain,
                       .rank = request.rank,
                       .each_rank = request.each_rank,
                       .problem = request.problem};
  options.solve.time_limit = request.time_limit;
  options.solve.gap = request.gap.value_or(request.memory ? 1e-3 : 0.0);
  options.solve.solver = request.solver;
  options.solve.highs = request.highs;
  return options;
}

}  // namespace

RedistributionPlanner PlannedStep::planner() const {
  const ShardingOptions options{.mesh = answer.plan.mesh, .device = &device, .interconnect = &links};
  return {options.mesh, redistribution_rates(options)};
}

PlannedStep plan_step(Graph graph, const StepRequest& request) {
  check_request(request);
  split_mean_losses(graph);
  if (request.cut_vocabulary) split_log_softmaxes(graph);
  PlannedStep planned;
  planned.graph = std::move(graph);
  planned.device = device_of_step(request, planned.graph);
  planned.links = links_of_step(request, planned.device);
  const ShardingOptions sharding{.mesh = request.mesh,
                                 .device = &planned.device,
                                 .interconnect = &planned.links,
                                 .rules = &request.rules,
                                 .memory = request.memory.value_or(kNoLimit),
                                 .pins = request.pins,
                                 .unfold = request.unfold,
                                 .cut_random = request.cut_random};
  if (!request.recompute) {
    planned.answer = shard(planned.graph, sharding, options_of_search(request));
    return planned;
  }
  RecomputedSharding found = shard_and_recompute(planned.graph, sharding, {.shard = options_of_search(request)});
  planned.graph = std::move(found.graph);
  planned.answer = std::move(found.answer);
  planned.segments = std::move(found.segments);
  planned.rounds = std::move(found.rounds);
  return planned;
}

std::string to_text(const PlannedStep& planned, int rows) {
  const std::string answer = to_text(planned.answer, rows);
  return planned.rounds.empty() ? answer : text_of_rounds(planned.rounds, planned.answer.memory) + "\n" + answer;
}

nlohmann::json to_json(const PlannedStep& planned) {
  nlohmann::json json = to_json(planned.answer);
  if (!planned.rounds.empty()) json["recompute"] = json_of_rounds(planned.rounds, planned.segments);
  return json;
}

}  // namespace shadowgraph
