#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "parallel/pipeline/pipeline_clock.h"
#include "parallel/pipeline/rank_memory.h"
#include "shadowgraph/error.h"
#include "shadowgraph/parallel/pipeline.h"
#include "support/on_two_threads.h"

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
  if (options.bytes_of != nullptr) run.take_bytes(*options.bytes_of);
  if (options.bytes_of != nullptr || !options.memory) return run;
  const auto play = [&](size_t rank) {
    RankMemory(*run.stages_, *run.schedule_, options, static_cast<int32_t>(rank))
        .run(run.ranks_[rank], run.actions_[rank]);
  };
  // Most time is that of allocators.
  if (run.stages_->parts().has_allocator) {
    on_two_threads(run.ranks_.size(), play);
  } else {
    for (size_t rank = 0; rank < run.ranks_.size(); ++rank) play(rank);
  }
  return run;
}

void PipelineRun::take_bytes(const PipelineRun& other) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    PipelineRank bytes = other.ranks_[rank];
    bytes.computing = ranks_[rank].computing;
    bytes.optimizer = ranks_[rank].optimizer;
    bytes.waits = ranks_[rank].waits;
    ranks_[rank] = std::move(bytes);
    for (size_t i = 0; i < actions_[rank].size(); ++i) actions_[rank][i].live = other.actions_[rank][i].live;
  }
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
