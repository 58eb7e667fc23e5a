// Turns a request into the options of shard(), and a captured step into one that can be cut.
#include "shadowgraph/sharding/plan_step.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include "shadowgraph/sharding/split_losses.h"
#include "sharding/plan/recompute_rounds.h"

namespace shadowgraph {

UnknownDeviceError::UnknownDeviceError(c10::Device device)
    : StepRequestError(fmt::format("no figures are known of {} devices; give some: StepRequest::device", device.str())),
      device_(device) {}

namespace {

// Pipelines cut a step in time, between layers. No layout of tensors says that.
constexpr std::array kPipelineAxes{"pp", "pipe", "pipeline", "stage", "stages"};

}  // namespace

// Asks here what shard() would only find out after the solver's time.
void check(const StepRequest& request) {
  if (request.mesh.axes.empty()) throw StepRequestError("sharding needs a mesh: StepRequest::mesh");
  for (const MeshAxis& axis : request.mesh.axes) {
    if (std::ranges::find(kPipelineAxes, axis.name) == kPipelineAxes.end()) continue;
    throw StepRequestError(fmt::format(
        "the mesh {} has an axis of a pipeline: layouts cut tensors, and a pipeline cuts the step into stages. "
        "`shadowgraph pipeline SOURCE --ranks {}` (sg.pipeline) plans those; give the other axes here",
        request.mesh.to_string(), axis.size));
  }
  if (!request.answer.empty() && (request.recompute || !request.by_hand.empty() || request.problem)) {
    throw StepRequestError("an answer that is given leaves nothing to recompute, to plan by hand or to export");
  }
  if (!request.by_hand.empty() && request.recompute) {
    throw StepRequestError("a plan by hand does not compute again: leave --recompute out");
  }
  if (request.rank < 0 || request.rank >= request.mesh.size()) {
    throw StepRequestError(fmt::format("the mesh {} has no rank {}", request.mesh.to_string(), request.rank));
  }
  if (request.recompute && !request.memory) {
    throw StepRequestError("sharding and recomputing together need a limit of memory: StepRequest::memory (--memory)");
  }
}

namespace {

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
                       .decided = request.decided,
                       .problem = request.problem};
  options.solve.time_limit = request.time_limit;
  options.solve.gap = request.gap.value_or(request.memory ? 1e-3 : 0.0);
  options.solve.solver = request.solver;
  options.solve.highs = request.highs;
  return options;
}

}  // namespace

namespace {

// A plan in which layers that are alike lie differently needs a variable for each.
ShardingAnswer measured(const Graph& graph, ShardingOptions sharding, const ShardOptions& options) {
  if (options.plan->mesh.to_string() != sharding.mesh.to_string()) {
    throw StepRequestError(fmt::format("the plan that is given is of the mesh {}, not of {}",
                                       options.plan->mesh.to_string(), sharding.mesh.to_string()));
  }
  try {
    return shard(graph, sharding, options);
  } catch (const NoPlanError&) {
    if (sharding.unfold) throw;
    sharding.unfold = true;
    return shard(graph, sharding, options);
  }
}

ShardingAnswer searched_or_given(const Graph& graph, ShardingOptions sharding, const StepRequest& request) {
  ShardOptions options = options_of_search(request);
  if (!request.by_hand.empty()) options.by_hand = hand_plan(request.by_hand, request.mesh);
  if (request.answer.empty()) return shard(graph, sharding, options);
  GivenAnswer given = read_answer(request.answer, request.answer_name, graph);
  if (given.plan) {
    options.plan = &*given.plan;
    return measured(graph, std::move(sharding), options);
  }
  options.choice = std::move(given.choice);
  sharding.pins.insert(sharding.pins.end(), given.layouts.begin(), given.layouts.end());
  return shard(graph, sharding, options);
}

}  // namespace

RedistributionPlanner PlannedStep::planner() const {
  const ShardingOptions options{.mesh = answer.plan.mesh, .device = &device, .interconnect = &links};
  return {options.mesh, redistribution_rates(options)};
}

PlannedStep plan_step(Graph graph, const StepRequest& request) {
  check(request);
  split_mean_losses(graph);
  if (request.cut_vocabulary) split_log_softmaxes(graph);
  if (!request.by_hand.empty() && hand_plan(request.by_hand, request.mesh) == HandPlan::kMegatron) {
    put_biases_behind_sums(graph);
  }
  PlannedStep planned;
  planned.graph = std::move(graph);
  planned.device = device_of_step(request, planned.graph);
  planned.links = links_of_step(request, planned.device);
  ShardingOptions sharding{.mesh = request.mesh,
                           .device = &planned.device,
                           .interconnect = &planned.links,
                           .rules = &request.rules,
                           .memory = request.memory.value_or(kNoLimit),
                           .pins = request.pins,
                           .unfold = request.unfold,
                           .cut_random = request.cut_random,
                           .overlap = request.overlap,
                           .parameter_byte = request.parameter_byte,
                           .kept_byte = request.kept_byte,
                           .layer_times = request.layer_times};
  if (!request.recompute) {
    planned.answer = searched_or_given(planned.graph, sharding, request);
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
