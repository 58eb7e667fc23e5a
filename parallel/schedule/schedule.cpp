#include "shadowgraph/parallel/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "parallel/schedule/known_schedules.h"
#include "parallel/schedule/schedule_check.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

struct KnownSchedule {
  std::string_view name;
  int32_t stages_per_rank;  // 0: as many as asked for
  PipelineSchedule::Rows (*rows)(const PipelineSize& size);
};
constexpr std::array<KnownSchedule, 9> kKnownSchedules = {{
    {"gpipe", 1, gpipe_rows},
    {"1f1b", 1, one_forward_one_backward_rows},
    {"interleaved", 0, interleaved_rows},
    {"looped_bfs", 0, looped_rows},
    {"zero_bubble", 0, zero_bubble_rows},
    {"zbv", 2, zbv_rows},
    {"dualpipe_v", 2, dualpipe_v_rows},
    {"v_half", 2, v_half_rows},
    {"v_min", 2, v_min_rows},
}};

const KnownSchedule& known_schedule(std::string_view name) {
  const auto found = std::ranges::find(kKnownSchedules, name, &KnownSchedule::name);
  if (found != kKnownSchedules.end()) return *found;
  throw Error(fmt::format("there is no schedule '{}'; there are {}, and CSV files", name,
                          fmt::join(PipelineSchedule::names(), ", ")));
}

}  // namespace

bool computes(const PipelineAction& action) { return action.work <= PipelineWork::kWeightGradient; }
bool transfers(const PipelineAction& action) {
  return action.work >= PipelineWork::kSendForward && action.work <= PipelineWork::kReceiveBackward;
}

PipelineSchedule::PipelineSchedule(std::string name, Rows rows)
    : name_(std::move(name)), rows_(std::make_shared<const Rows>(std::move(rows))) {
  ScheduleFacts facts = check_schedule(name_, *rows_);
  rank_of_ = std::move(facts.rank_of);
  microbatches_ = facts.microbatches;
  has_transfers_ = facts.has_transfers;
}

std::vector<std::string> PipelineSchedule::names() {
  std::vector<std::string> names;
  for (const KnownSchedule& known : kKnownSchedules) names.emplace_back(known.name);
  return names;
}

int32_t PipelineSchedule::stages_per_rank(std::string_view name, int32_t asked) {
  const int32_t own = known_schedule(name).stages_per_rank;
  return own > 0 ? own : asked;
}

PipelineSchedule PipelineSchedule::named(std::string_view name, const PipelineSize& size) {
  const KnownSchedule& known = known_schedule(name);
  const auto refuse = [&](const std::string& why) { throw Error(fmt::format("schedule {}: {}", name, why)); };
  if (size.ranks < 1 || size.stages_per_rank < 1 || size.microbatches < 1) {
    refuse("ranks, stages and micro-batches are at least 1");
  }
  if (int64_t{size.ranks} * size.stages_per_rank * size.microbatches > 1 << 22) refuse("it is too large");
  if (known.stages_per_rank > 0 && size.stages_per_rank != known.stages_per_rank) {
    refuse(fmt::format("it has {} a rank, not {}", known.stages_per_rank == 1 ? "one stage" : "two stages",
                       size.stages_per_rank));
  }
  return {std::string(name), known.rows(size)};
}

}  // namespace shadowgraph
