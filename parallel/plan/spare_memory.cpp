#include "parallel/plan/spare_memory.h"

#include <algorithm>
#include <map>

namespace shadowgraph {
namespace {

class RankMemory {
 public:
  RankMemory(const LayoutChains& chains, const SplitLimits& limits, const PipelineSchedule& schedule, int32_t rank,
             std::vector<StageUnits>& stages)
      : chains_(chains), limits_(limits), actions_(schedule.of(rank)) {
    for (int32_t s = 0; s < schedule.stages(); ++s) {
      if (schedule.rank_of(s) != rank) continue;
      StageUnits& stage = stages[static_cast<size_t>(s)];
      memory_ += limits.memory[static_cast<size_t>(s)];
      standing_ += without_passing(stage, {});
      own_.emplace(s, Own{&stage, figures(stage)});
    }
  }

  void spend() {
    int64_t bytes = needed();
    while (own_.size() > 1) {
      StageUnits* best = nullptr;
      double most = 0;
      int64_t best_bytes = 0;
      for (auto& [s, own] : own_) {
        if (own.stage->again == 0) continue;
        const double before = seconds_of(chains_, *own.stage);
        --own.stage->again;
        const Figures kept = own.figures;
        own.figures = figures(*own.stage);
        const int64_t more = needed();
        const double saved = before - seconds_of(chains_, *own.stage);
        const double worth = saved / static_cast<double>(std::max<int64_t>(1, more - bytes));
        if (saved > 0 && more <= memory_ && worth > most) {
          most = worth;
          best = own.stage;
          best_bytes = more;
        }
        ++own.stage->again;
        own.figures = kept;
      }
      if (best == nullptr) return;
      --best->again;
      for (auto& [s, own] : own_) {
        if (own.stage == best) own.figures = figures(*best);
      }
      bytes = best_bytes;
    }
  }

 private:
  struct Figures {
    int64_t carried = 0, awaiting = 0, passing = 0;
  };
  struct Own {
    StageUnits* stage;
    Figures figures;
  };

  int64_t without_passing(const StageUnits& stage, Between between) const {
    return bytes_of(chains_, stage, between, limits_) - passing_of(chains_, stage) / limits_.stages_per_rank;
  }
  Figures figures(const StageUnits& stage) const {
    const int64_t standing = without_passing(stage, {});
    return {without_passing(stage, {.gradients = 1}) - standing, without_passing(stage, {.weights = 1}) - standing,
            passing_of(chains_, stage)};
  }

  // All that stands, what is between forward and backward at most, and the most that passes.
  int64_t needed() const {
    int64_t live = 0, most = 0, passing = 0;
    for (const auto& [s, own] : own_) passing = std::max(passing, own.figures.passing);
    for (const PipelineAction& action : actions_) {
      if (!computes(action)) continue;
      const Figures& of = own_.at(action.stage).figures;
      switch (action.work) {
        case PipelineWork::kForward:
          live += of.carried;
          break;
        case PipelineWork::kBackward:
          live -= of.carried;
          break;
        case PipelineWork::kInputGradient:
          live += of.awaiting;
          break;
        default:
          live -= of.carried + of.awaiting;
      }
      most = std::max(most, live);
    }
    return standing_ + most + passing;
  }

  const LayoutChains& chains_;
  const SplitLimits& limits_;
  std::span<const PipelineAction> actions_;
  std::map<int32_t, Own> own_;
  int64_t memory_ = 0, standing_ = 0;
};

}  // namespace

void keep_more(const LayoutChains& chains, const SplitLimits& limits, const PipelineSchedule& schedule,
               std::vector<StageUnits>& stages) {
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    RankMemory(chains, limits, schedule, rank, stages).spend();
  }
}

}  // namespace shadowgraph
