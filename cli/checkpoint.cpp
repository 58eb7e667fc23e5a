#include "cli/checkpoint.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/recompute.h"
#include "shadowgraph/profile/time.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

// The device whose memory is in question: that of the largest storages.
c10::DeviceType device_of(const Graph& graph) {
  if (graph.metadata.device) return graph.metadata.device->type();
  const Storage* largest = nullptr;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (largest == nullptr || storage.bytes > largest->bytes) largest = &storage;
  }
  return largest == nullptr ? c10::kCPU : largest->device_type;
}

std::vector<RegionId> stages_named(const Graph& graph, const std::string& modules) {
  if (modules.empty()) return {};
  std::vector<RegionId> regions = regions_named(graph, modules);
  if (regions.empty()) throw Error("no region matches --modules " + modules);
  return regions;
}

}  // namespace

void checkpoint(const CheckpointRequest& request) {
  const bool plans = request.pareto || request.bytes || !request.picture.empty();
  if (!plans && request.chain.empty() && request.module_statistics.empty()) {
    throw Error("what is asked for? Give --pareto, --bytes, --svg, --chain or --module-statistics");
  }
  if (!request.output.empty() && !request.bytes)
    throw Error("-o writes the step with the plan within --bytes: give it");
  const LoadedGraph loaded = load(request.capture);
  const Graph& graph = loaded.graph;
  const auto spec = DeviceSpec::find(request.spec, device_of(graph));
  std::optional<StepTime> time;
  if (spec) time = StepTime::of(graph, *spec);
  const StepTime* times = time ? &*time : nullptr;
  if (request.by_time && times == nullptr) throw Error("--cost time: no figures of this device; name some with --spec");

  CheckpointCurveOptions options;
  if (request.by_time) options.chain.cost = nanoseconds(*time);
  if (request.link_bandwidth > 0) {
    if (!request.by_time) throw Error("--link-bandwidth weighs transfers against computing: give --cost time");
    options.chain.link = request.link_bandwidth * 1e-9;
  }
  const std::vector<RegionId> regions = stages_named(graph, request.modules);
  if (!request.chain.empty()) {
    const CheckpointChain chain = CheckpointChain::of(graph, regions, options.chain);
    write_file(request.chain, json_text(chain_json(graph, chain, times)));
  }
  if (!request.module_statistics.empty()) {
    if (times == nullptr) throw Error("--module-statistics: no figures of this device; name some with --spec");
    write_file(request.module_statistics, json_text(sac_ilp_module_info(graph, *time)));
  }
  if (!plans) return;

  const CheckpointCurve curve = [&] {
    const Progress progress("trying what to compute again");
    return CheckpointCurve::of(graph, regions, options);
  }();
  if (curve.chain().stages.empty()) throw Error("this graph is no training step: there is no backward in it");
  RecomputeCurve figures = RecomputeCurve::of(graph, curve, times);
  if (!request.picture.empty()) {
    write_file(request.picture, to_svg(figures, loaded.name + ": peak against recomputing"));
  }
  if (request.bytes) {
    const CheckpointChoice* choice = curve.within(*request.bytes);
    if (choice == nullptr) {
      throw Error(fmt::format(
          "no plan is within {}: the lowest peak is {}, and {} are parameters, inputs and what else "
          "no plan changes",
          human_bytes(*request.bytes), human_bytes(figures.points.back().peak), human_bytes(figures.elsewhere)));
    }
    if (!request.output.empty()) {
      Graph rewritten = clone(graph);
      checkpoint_segments(rewritten, choice->segments);
      write_file(request.output, to_text(rewritten));
    }
    if (!request.pareto) {
      figures.points = {figures.points[static_cast<size_t>(choice - curve.choices().data())]};
      figures.others.clear();
    }
  }
  if (!request.pareto && !request.bytes) return;
  std::fputs((request.json ? json_text(to_json(figures)) : to_text(figures)).c_str(), stdout);
}

}  // namespace shadowgraph::cli
