#include "cli/baseline.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "support/json.h"

namespace shadowgraph::cli {
namespace {

using nlohmann::json;

constexpr const char* kBaselineFormat = "shadowgraph-baseline";
constexpr int64_t kMost = int64_t{1} << 62;

int64_t nanoseconds(double seconds) {
  if (seconds * 1e9 < static_cast<double>(kMost)) return std::llround(seconds * 1e9);
  throw Error(fmt::format("a step of {:g} s does not fit in a baseline; check the rates of the device spec", seconds));
}

std::string description_of(const Graph& graph) {
  const Metadata& metadata = graph.metadata;
  std::string text = metadata.model.value_or("a graph");
  if (metadata.mode) text += metadata.mode == ProgramMode::kTrain ? ", train" : ", infer";
  if (metadata.optimizer) text += ", " + *metadata.optimizer;
  if (metadata.dtype) text += fmt::format(", {}", c10::toString(*metadata.dtype));
  if (metadata.batch) text += fmt::format(", batch {}", *metadata.batch);
  if (metadata.seq) text += fmt::format(", sequence {}", *metadata.seq);
  if (metadata.step == TrainingStep::kSteady) text += ", steady state";
  if (metadata.device) text += ", " + metadata.device->str();
  return text;
}

// Path of the module that a node's time is attributed to. A backward node counts for its forward node's module.
std::string module_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool linked = node.phase == Graph::kBackward && node.forward.valid() && !graph.is_erased(node.forward);
  RegionId region = linked ? graph.node(node.forward).region : node.region;
  for (; region.valid(); region = graph.region(region).parent) {
    if (graph.region(region).kind == RegionKind::kModule) return std::string(graph.text(graph.region(region).name));
  }
  return {};
}

json json_of_amounts(const Baseline::Amounts& amounts) {
  json rows = json::array();
  for (const auto& [maker, amount] : amounts) rows.push_back({maker.kind, maker.module, maker.op, amount});
  return rows;
}

Baseline::Amounts amounts_in(const JsonPlace& rows) {
  Baseline::Amounts amounts;
  for (const JsonPlace& row : rows.elements()) {
    if (row.size() != 4) row.fail("is not [kind, module, operator, amount]");
    amounts[{row[0].text(), row[1].text(), row[2].text()}] += row[3].integer(0, kMost);
  }
  return amounts;
}

}  // namespace

Baseline Baseline::of(const Graph& graph, const DeviceSpec& spec) {
  const Profile costs = profile(graph, {.top_at_peak = graph.storage_count(), .spec = &spec});
  Baseline baseline{.program = description_of(graph), .spec = spec.name};
  baseline.peak = costs.peak.bytes;
  baseline.time = nanoseconds(
      costs.time()->per_step(costs.overlap() != nullptr ? costs.overlap()->seconds() : costs.time()->seconds()));
  baseline.saved = costs.saved.activations;
  baseline.parameters = costs.size.parameter_bytes;
  for (const auto& [phase, flops] : costs.flops)
    baseline.flops += flops.matmul + flops.elementwise + flops.transcendental;
  for (const LiveStorage& live : costs.top_at_peak) {
    baseline.at_peak[{std::string(to_string(live.kind)), live.module, live.producer}] += live.bytes;
  }
  std::map<Maker, double> seconds;
  for (const NodeId node : graph.nodes()) {
    const double own = costs.time()->of(node).seconds;
    if (own > 0)
      seconds[{graph.phase_name(graph.node(node).phase), module_of(graph, node), graph.target(node).name()}] += own;
  }
  for (const auto& [maker, sum] : seconds) baseline.kernels[maker] = nanoseconds(sum);
  return baseline;
}

json Baseline::to_json() const {
  return {{"format", kBaselineFormat},
          {"version", 1},
          {"program", program},
          {"spec", spec},
          {"peak_bytes", peak},
          {"nanoseconds", time},
          {"saved_activation_bytes", saved},
          {"parameter_bytes", parameters},
          {"flops", flops},
          {"at_peak", json_of_amounts(at_peak)},
          {"kernels", json_of_amounts(kernels)}};
}

Baseline Baseline::from_json(const json& json, const std::string& name) {
  const JsonPlace place(json, name);
  if (!place.is_object() || place.text_or("format", "") != kBaselineFormat) {
    throw ParseError(
        fmt::format("{} is not a baseline; create one with 'shadowgraph check {} SOURCE --update'", name, name), 0, 0);
  }
  if (place["version"].integer() != 1) place["version"].fail("is not 1; recreate the baseline with --update");
  const auto amount = [&](const char* key) { return place[key].integer(0, kMost); };
  Baseline baseline{.program = place["program"].text(),
                    .spec = place["spec"].text(),
                    .peak = amount("peak_bytes"),
                    .time = amount("nanoseconds"),
                    .saved = amount("saved_activation_bytes"),
                    .parameters = amount("parameter_bytes"),
                    .flops = amount("flops"),
                    .at_peak = amounts_in(place["at_peak"]),
                    .kernels = amounts_in(place["kernels"])};
  place.refuse_other_keys("a baseline");
  return baseline;
}

}  // namespace shadowgraph::cli
