// Puts plans of recomputing into figures: the curve of peak against recomputed FLOPs, as a table and JSON.
#include "shadowgraph/profile/recompute_curve.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

CostOfNode nanoseconds(const StepTime& time) {
  return [time](const Graph&, NodeId node) {
    return static_cast<int64_t>(std::ceil(std::min(time.of(node).seconds * 1e9, 1e18)));
  };
}

RecomputeCurve RecomputeCurve::of(const Graph& graph, const CheckpointCurve& curve, const StepTime* time) {
  const Flops flops = Flops::of(graph);
  RecomputeCurve figures{.flops = flops.of_phase(Graph::kForward).matmul + flops.of_phase(Graph::kBackward).matmul,
                         .elsewhere = curve.chain().elsewhere,
                         .not_a_chain = curve.chain().not_a_chain};
  const auto point_of = [&](const CheckpointChoice& choice) {
    RecomputePoint point{.made_by = choice.made_by, .peak = choice.peak, .offloaded = choice.offloaded};
    if (time != nullptr) point.seconds = 0;
    for (const NodeId n : choice.repeated) {
      point.flops += flops.of(n).matmul;
      if (time != nullptr) *point.seconds += time->of(n).seconds;
    }
    point.nodes = static_cast<int64_t>(choice.repeated.size());
    if (figures.flops != 0) point.share = static_cast<double>(point.flops) / static_cast<double>(figures.flops);
    for (const CheckpointSegment& segment : choice.segments) {
      ++(segment.keep.empty() ? point.dropped : point.in_part);
      point.segments.push_back(segment.name);
    }
    return point;
  };
  for (const CheckpointChoice& choice : curve.choices()) figures.points.push_back(point_of(choice));
  for (const CheckpointChoice& choice : curve.tried()) {
    if (choice.made_by != "optimal" && choice.made_by != "none") figures.others.push_back(point_of(choice));
  }
  return figures;
}

std::string to_text(const RecomputeCurve& curve) {
  const bool times = !curve.points.empty() && curve.points[0].seconds.has_value();
  std::string text = fmt::format("{:>12}  {:>14} {:>8}{}  {:>6}  {}\n", "PEAK", "FLOPS AGAIN", "OF STEP",
                                 times ? fmt::format("  {:>9}", "TIME") : "", "NODES", "PLAN");
  for (const RecomputePoint& point : curve.points) {
    std::string plan = point.made_by;
    if (point.dropped != 0) plan += fmt::format(", {} dropped", point.dropped);
    if (point.in_part != 0) plan += fmt::format(", {} kept in part", point.in_part);
    if (point.offloaded != 0) plan += fmt::format(", {} on the host", human_bytes(point.offloaded));
    text += fmt::format("{:>12}  {:>14} {:>7.2f}%{}  {:>6}  {}\n", human_bytes(point.peak), human_count(point.flops),
                        100 * point.share, times ? fmt::format("  {:>9}", human_seconds(*point.seconds)) : "",
                        point.nodes, plan);
  }
  text += fmt::format(
      "\n{} FLOPs of products in a step without recomputing; {} are parameters, inputs and what else no "
      "plan changes\n",
      human_count(curve.flops), human_bytes(curve.elsewhere));
  for (const std::string& why : curve.not_a_chain) text += "no chain: " + why + "\n";
  return text;
}

nlohmann::json to_json(const RecomputeCurve& curve) {
  const auto points_of = [](const std::vector<RecomputePoint>& points) {
    nlohmann::json list = nlohmann::json::array();
    for (const RecomputePoint& point : points) {
      nlohmann::json entry{{"made_by", point.made_by},      {"peak_bytes", point.peak},   {"flops_again", point.flops},
                           {"share_of_step", point.share},  {"nodes_again", point.nodes}, {"dropped", point.dropped},
                           {"kept_in_part", point.in_part}, {"segments", point.segments}};
      if (point.offloaded != 0) entry["offloaded_bytes"] = point.offloaded;
      if (point.seconds) entry["seconds_again"] = *point.seconds;
      list.push_back(std::move(entry));
    }
    return list;
  };
  return {{"points", points_of(curve.points)},
          {"other_policies", points_of(curve.others)},
          {"step_flops", curve.flops},
          {"elsewhere_bytes", curve.elsewhere},
          {"why_not_a_chain", curve.not_a_chain}};
}

}  // namespace shadowgraph
