// Says when each rank of a pipeline does what.
#pragma once

#include <vector>

#include "shadowgraph/parallel/pipeline.h"
#include "shadowgraph/parallel/ranks.h"

namespace shadowgraph {

// Fills in the seconds of a run.
class PipelineClock {
 public:
  // `schedule` has its transfers. All live until run() has returned.
  PipelineClock(const PipelineStages& stages, const PipelineSchedule& schedule, const PipelineRunOptions& options)
      : stages_(stages), schedule_(schedule), options_(options) {}

  void run(PipelineRun& run);

 private:
  RankProgram program_of(int32_t rank) const;
  double seconds_of(const PipelineAction& action, std::vector<int32_t>& backwards) const;
  double transfer_seconds(const PipelineAction& action) const;
  int32_t other_end(const PipelineAction& action) const;
  void read_rank(int32_t rank, const RankProgram& program, const RankTimes& times, PipelineRun& run) const;

  const PipelineStages& stages_;
  const PipelineSchedule& schedule_;
  const PipelineRunOptions& options_;
};

}  // namespace shadowgraph
