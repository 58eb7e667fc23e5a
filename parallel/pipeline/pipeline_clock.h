// Says when each rank of a pipeline does what.
#pragma once

#include <span>
#include <vector>

#include "shadowgraph/parallel/pipeline.h"
#include "shadowgraph/parallel/ranks.h"

namespace shadowgraph {

// Fills in the seconds of a run.
class PipelineClock {
 public:
  // `schedule` has its transfers. All live until run() has returned.
  PipelineClock(const PipelineStages& stages, const PipelineSchedule& schedule, const PipelineRunOptions& options);

  void run(PipelineRun& run);

 private:
  // Seconds of an action: its kernels, and what collectives inside it add.
  struct Parts {
    double computing = 0;
    double exposed = 0;
  };
  RankProgram program_of(int32_t rank) const;
  Parts parts_of(const PipelineAction& action, std::vector<int32_t>& backwards) const;
  double seconds_of(std::span<const Parts> together) const;
  double tied_seconds(size_t number) const;
  double transfer_seconds(const PipelineAction& action) const;
  double seconds_between(int32_t sender, int32_t receiver, int64_t bytes) const;
  int32_t other_end(const PipelineAction& action) const;
  void read_rank(int32_t rank, const RankProgram& program, const RankTimes& times, PipelineRun& run) const;

  const PipelineStages& stages_;
  const PipelineSchedule& schedule_;
  const PipelineRunOptions& options_;
  std::vector<PieceSeconds> transfers_;        // by stage: what it sends to the next one, and to the one before
  std::vector<char> unsharded_;                // by stage: the schedule gathers its parameters
  std::vector<std::vector<uint32_t>> groups_;  // each rank alone, then the ranks of each tied parameter
};

}  // namespace shadowgraph
