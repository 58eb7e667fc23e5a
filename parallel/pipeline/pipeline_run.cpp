#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <tuple>
#include <utility>

#include "parallel/pipeline/pipeline_clock.h"
#include "parallel/pipeline/rank_memory.h"
#include "shadowgraph/error.h"
#include "shadowgraph/parallel/pipeline.h"

namespace shadowgraph {

PipelineRun PipelineRun::of(PipelineStages stages, const PipelineSchedule& schedule,
                            const PipelineRunOptions& options) {
  if (stages.count() != schedule.stages()) {
    throw Error(fmt::format("schedule {} has {} stages, and the step is cut into {}", schedule.name(),
                            schedule.stages(), stages.count()));
  }
  PipelineRun run;
  run.stages_ = std::make_shared<const PipelineStages>(std::move(stages));
  run.schedule_ = std::make_shared<const PipelineSchedule>(schedule.with_transfers());
  run.ranks_.resize(static_cast<size_t>(schedule.ranks()));
  PipelineClock(*run.stages_, *run.schedule_, options).run(run);
  const auto every_other_rank = [&](int32_t first) {
    for (int32_t rank = first; rank < schedule.ranks(); rank += 2) {
      const auto r = static_cast<size_t>(rank);
      RankMemory(*run.stages_, *run.schedule_, options, rank).run(run.ranks_[r], run.actions_[r]);
    }
  };
  // Ranks know nothing of each other's memory. Most time is its allocators'.
  std::exception_ptr failed;
  if (schedule.ranks() > 1 && run.stages_->parts().has_allocator) {
    const std::jthread other([&] {
      try {
        every_other_rank(1);
      } catch (...) {
        failed = std::current_exception();
      }
    });
    every_other_rank(0);
  } else {
    every_other_rank(0);
    every_other_rank(1);
  }
  if (failed) std::rethrow_exception(failed);
  return run;
}

double PipelineRun::bubble() const {
  double waits = 0;
  for (const PipelineRank& rank : ranks_) waits += rank.waits.total();
  return seconds_ > 0 ? waits / (seconds_ * static_cast<double>(ranks_.size())) : 0;
}

int32_t PipelineRun::worst_rank() const {
  const auto worst = std::ranges::max_element(
      ranks_, {}, [](const PipelineRank& rank) { return std::tuple(rank.reserved_peak, rank.peak); });
  return static_cast<int32_t>(worst - ranks_.begin());
}

}  // namespace shadowgraph
