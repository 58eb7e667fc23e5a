// Plays what one rank of a pipeline allocates and frees, action by action.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "parallel/stages/stage_parts.h"
#include "shadowgraph/parallel/pipeline.h"
#include "shadowgraph/profile/caching_allocator.h"

namespace shadowgraph {

class RankMemory {
 public:
  // `schedule` has its transfers. All outlive this.
  RankMemory(const PipelineStages& stages, const PipelineSchedule& schedule, const PipelineRunOptions& options,
             int32_t rank);

  // Two steps of training, of which the second is told. `actions`: the rank's, in the order of its row without what is
  // no action of a micro-batch.
  void run(PipelineRank& of, std::span<PipelineActionTime> actions);

 private:
  struct Held {
    CachingAllocator::Handle handle;
    int64_t bytes = 0;
  };
  using Slots = std::vector<Held>;

  void take(Held& held, int64_t bytes);
  void drop(Held& held);
  void play(std::span<const PieceEvent> events, const StagePart& part, Slots& slots, Slots& gradients);
  void act(const PipelineAction& action);
  void receive(std::span<const PieceEvent> events, Slots& slots);
  void count(const PipelineAction& action);
  void step(std::span<PipelineActionTime> actions);
  void optimizer_step();
  static uint64_t key_of(int32_t stage, int32_t microbatch) {
    return static_cast<uint64_t>(stage) << 32 | static_cast<uint32_t>(microbatch);
  }
  Slots& slots_of(int32_t stage, int32_t microbatch);
  void forget_if_empty(int32_t stage, int32_t microbatch);
  const StagePart& part(int32_t stage) const { return parts_.stages[static_cast<size_t>(stage)]; }
  bool is_here(int32_t stage) const {
    return stage >= 0 && stage < schedule_.stages() && schedule_.rank_of(stage) == rank_;
  }

  const PipelineStages& stages_;
  const StageParts& parts_;
  const PipelineSchedule& schedule_;
  const PipelineRunOptions& options_;
  int32_t rank_;
  std::vector<int32_t> own_;  // stages
  CachingAllocator allocator_;
  std::unordered_map<uint64_t, Slots> slots_;  // by stage and micro-batch, while anything is held
  std::vector<Slots> gradients_;               // by stage
  std::vector<int32_t> between_;               // by stage: micro-batches between forward and backward
  PipelineAction now_{.stage = -1};
  int64_t live_ = 0, carried_ = 0, on_host_ = 0;
  PipelineRank figures_;
};

}  // namespace shadowgraph
