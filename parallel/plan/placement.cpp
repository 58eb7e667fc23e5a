#include "parallel/plan/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parallel/plan/candidate.h"

namespace shadowgraph {

std::vector<PlacedAxis> placement_of(const TrainingPlan& plan, const Interconnect& links) {
  std::vector<PlacedAxis> axes{{.axis = "tensor", .ranks = plan.tensor, .apart = 1},
                               {.axis = "context", .ranks = plan.context, .apart = plan.tensor},
                               {.axis = "data",
                                .ranks = plan.data,
                                .apart = plan.tensor * plan.context * (plan.data_outermost ? plan.pipeline : 1)},
                               {.axis = "pipeline", .ranks = plan.pipeline, .apart = ranks_apart(plan)}};
  std::erase_if(axes, [](const PlacedAxis& axis) { return axis.ranks == 1; });
  std::ranges::stable_sort(axes, {}, &PlacedAxis::apart);
  for (PlacedAxis& axis : axes) {
    // Groups begin at whole multiples of what they span, or inside a block that does.
    const int64_t span = axis.ranks * axis.apart;
    for (const LinkLevel& level : links.levels) {
      axis.level = level.name;
      if (level.size == 0 || (span <= level.size && level.size % span == 0)) break;
    }
  }
  return axes;
}

std::string to_string(const std::vector<PlacedAxis>& placed) {
  std::string text;
  for (const PlacedAxis& axis : placed) {
    text += fmt::format("{}{} {} over {}", text.empty() ? "" : ", ", axis.axis, axis.ranks, axis.level);
  }
  return text;
}

void check_links(const ClusterRequest& request) {
  const Interconnect& links = request.links;
  if (!links.levels.empty() && links.levels.back().size > 0 && request.devices > links.levels.back().size) {
    throw Error(
        fmt::format("links '{}' join {} devices by {}, their outermost level, and the plan is of {}: give a "
                    "level around them, or one without a size",
                    links.name, links.levels.back().size, links.levels.back().name, request.devices));
  }
  constexpr std::array<const char*, 2> kNamed{"tp", "dp"};
  for (const auto& [axis, figures] : links.axes) {
    if (std::ranges::find(kNamed, axis) != kNamed.end()) continue;
    throw Error(fmt::format("links '{}' have figures of an axis '{}', which no plan has: its axes are tp and dp",
                            links.name, axis));
  }
}

}  // namespace shadowgraph
