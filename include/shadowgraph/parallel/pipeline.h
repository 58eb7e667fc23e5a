// All ranks of a pipeline, in seconds and bytes.
//
//     const auto stages = PipelineStages::balanced(step.graph, 4, {.spec = &h100});
//     const auto schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 16});
//     const PipelineRun run = PipelineRun::of(stages, schedule, {.interconnect = &links});
//     run.seconds(); run.bubble(); run.rank(0).peak;
//     to_text(run);
//
// Each rank does its actions in the schedule's order on one stream. Sends and receives run beside it, one after another
// between two ranks in one direction; so do UNSHARD and REDUCE_GRAD. Gradients of weights that several ranks hold are
// added at the end of backward. Bytes are played through the caching allocator of each rank, in the order in which
// its host allocates them. The step is one of the steady state, and the optimizer's comes last.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/parallel/schedule.h"
#include "shadowgraph/parallel/stages.h"
#include "shadowgraph/profile/allocator_settings.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

class PipelineRun;

struct PipelineRunOptions {
  const Interconnect* interconnect = nullptr;  // between ranks; none: sending takes no time
  // How far apart two neighbours of the pipeline are in rank: the processes of one stage, such as 8 of tensor parallel.
  int64_t ranks_apart = 1;
  AllocatorSettings allocator;
  // Where two actions overlap, this share of what collectives expose hides behind the other's computing, as far as that
  // goes: 1 all, 0 nothing. Their computing takes its sum in any case.
  double overlap = 1;
  // torch.distributed.pipelining has room for what it receives of all micro-batches from the beginning; other engines
  // take it when it comes.
  bool receives_ahead = false;
  // Bytes are those of this run of the same stages in the same order, which links do not change.
  const PipelineRun* bytes_of = nullptr;
  bool memory = true;  // false: seconds alone, and no bytes
};

// Seconds in which a rank does not compute, by cause.
struct PipelineWaits {
  double before = 0;    // its first action
  double forward = 0;   // for what the stage before sends
  double backward = 0;  // for gradients of the next stage
  double unshard = 0;   // for a stage's parameters: UNSHARD
  double reduce = 0;    // for sums of gradients: REDUCE_GRAD, and weights that several stages hold
  double after = 0;     // its last action, until the last rank is done
  double total() const { return before + forward + backward + unshard + reduce + after; }
};

struct PipelineRank {
  std::vector<int32_t> stages;
  double computing = 0;  // seconds, the optimizer included
  double optimizer = 0;  // seconds of its step, the last that the rank computes
  PipelineWaits waits;
  int64_t resident = 0;           // bytes of parameters, state, buffers and inputs
  int64_t peak = 0;               // most live bytes, resident ones included
  PipelineAction peak_at;         // while it did this; stage below 0: in the optimizer's step
  int64_t allocated_peak = 0;     // of the allocator, in blocks
  int64_t reserved_peak = 0;      // in segments
  int64_t activations_peak = 0;   // most bytes carried from forward to backward
  int64_t host_peak = 0;          // most bytes that waited on the host
  int32_t microbatches_peak = 0;  // most that were between forward and backward, counted by stage
};

struct PipelineActionTime {
  PipelineAction action;
  double begin = 0;
  double end = 0;
  int64_t live = 0;  // bytes after it
};

class PipelineRun {
 public:
  // Throws Error where the schedule has another number of stages. Linear in what the actions allocate.
  static PipelineRun of(PipelineStages stages, const PipelineSchedule& schedule,
                        const PipelineRunOptions& options = {});

  double seconds() const { return seconds_; }  // of a step
  // The share of all ranks' time in which they wait.
  double bubble() const;
  int32_t ranks() const { return static_cast<int32_t>(ranks_.size()); }
  const PipelineRank& rank(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int32_t worst_rank() const;  // by reserved bytes, then live ones
  // In order: what computes, and transfers when they ran. The optimizer's step is none of them.
  std::span<const PipelineActionTime> actions(int32_t rank) const { return actions_[static_cast<size_t>(rank)]; }
  const PipelineSchedule& schedule() const { return *schedule_; }
  const PipelineStages& stages() const { return *stages_; }

 private:
  friend class PipelineClock;
  void take_bytes(const PipelineRun& other);
  double seconds_ = 0;
  std::vector<PipelineRank> ranks_;
  std::vector<std::vector<PipelineActionTime>> actions_;
  std::shared_ptr<const PipelineSchedule> schedule_;
  std::shared_ptr<const PipelineStages> stages_;
};

// A table of ranks, the worst of them and why, waits by cause.
std::string to_text(const PipelineRun& run);
nlohmann::json to_json(const PipelineRun& run);
// All ranks for chrome://tracing and Perfetto. A rank has a lane for computing, one for each direction of transfers, and a
// counter of live bytes; arrows go from sends to receives.
std::string to_chrome_trace(const PipelineRun& run);

}  // namespace shadowgraph
