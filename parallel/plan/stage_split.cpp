#include "parallel/plan/stage_split.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>

namespace shadowgraph {
namespace {

// The first units of a stage are at the higher of two adjacent levels.
struct TwoLevels {
  const LayerChain* more;
  const LayerChain* less;
  int64_t middle;  // first unit at the lower level
};

TwoLevels levels_of(const RecomputeLadder& ladder, const StageUnits& stage) {
  const int64_t units = stage.last - stage.first, level = stage.recompute_steps / units;
  const LayerChain* less = ladder.levels()[static_cast<size_t>(level)].chain.get();
  const int64_t ahead = stage.recompute_steps % units;
  return {ahead > 0 ? ladder.levels()[static_cast<size_t>(level) + 1].chain.get() : less, less, stage.first + ahead};
}

using Figure = int64_t (LayerChain::*)(int64_t first, int64_t last) const;
int64_t sum_of(const RecomputeLadder& ladder, const StageUnits& stage, Figure figure) {
  const auto [more, less, middle] = levels_of(ladder, stage);
  return (middle > stage.first ? (more->*figure)(stage.first, middle) : 0) + (less->*figure)(middle, stage.last);
}

// Bytes that do not depend on recompute.
int64_t held_of(const RecomputeLadder& ladder, const StageUnits& stage, const SplitLimits& limits) {
  const LayerChain& kept = ladder.kept();
  return replica_memory(kept.model_state(stage.first, stage.last), limits.replicas).all() +
         kept.fixed(stage.first, stage.last);
}

int64_t activation_bytes(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight,
                         const SplitLimits& limits) {
  int64_t bytes = in_flight.gradients * sum_of(ladder, stage, &LayerChain::carried);
  if (in_flight.weights > 0) bytes += in_flight.weights * sum_of(ladder, stage, &LayerChain::awaiting);
  return bytes + transient_of(ladder, stage) / limits.stages_per_rank;
}

class Splitter {
 public:
  Splitter(const RecomputeLadder& ladder, const SplitLimits& limits)
      : ladder_(ladder), limits_(limits), units_(ladder.units()), stages_(std::ssize(limits.in_flight)) {}

  std::optional<std::vector<StageUnits>> run() {
    if (stages_ > units_) return std::nullopt;
    double most = ladder_.most().seconds(0, units_).all() + ladder_.kept().seconds(0, units_).all(), least = 0;
    std::optional<std::vector<StageUnits>> found = under(most);
    if (!found) return std::nullopt;
    for (int i = 0; i < kHalvings && most - least > kClose * most; ++i) {
      const double middle = (least + most) / 2;
      if (auto better = under(middle)) {
        found = std::move(better);
        most = middle;
      } else {
        least = middle;
      }
    }
    return found;
  }

 private:
  static constexpr int kHalvings = 40;
  static constexpr double kClose = 1e-4;

  // Returns the fewest recompute steps with which a stage fits. Higher levels may have a higher transient peak.
  std::optional<int64_t> fewest_steps(int64_t first, int64_t last, size_t stage) const {
    const int64_t held = held_of(ladder_, {first, last}, limits_);
    const auto fits = [&](int64_t n) {
      return held + activation_bytes(ladder_, {first, last, n}, limits_.in_flight[stage], limits_) <=
             limits_.memory[stage];
    };
    if (fits(0)) return 0;
    const int64_t highest = max_recompute_steps(ladder_, first, last), units = last - first;
    int64_t most = units;
    while (most <= highest && !fits(most)) most += units;
    if (most > highest) return std::nullopt;
    int64_t least = most - units;
    while (most - least > 1) {
      const int64_t middle = (least + most) / 2;
      (fits(middle) ? most : least) = middle;
    }
    return most;
  }

  // Cache, since the bisection evaluates the same ranges repeatedly.
  struct Known {
    StageUnits stage;
    double seconds = std::numeric_limits<double>::infinity();  // if it does not fit
  };
  std::optional<StageUnits> stage(int64_t first, int64_t last, size_t number, double seconds) {
    const auto key = (static_cast<uint64_t>(number) * static_cast<uint64_t>(units_) + static_cast<uint64_t>(first)) *
                         static_cast<uint64_t>(units_ + 1) +
                     static_cast<uint64_t>(last);
    const auto [known, is_new] = known_.try_emplace(key);
    if (is_new) {
      if (const std::optional<int64_t> steps = fewest_steps(first, last, number)) {
        known->second.stage = {first, last, *steps};
        known->second.seconds = seconds_of(ladder_, known->second.stage);
      }
    }
    return known->second.seconds <= seconds ? std::optional(known->second.stage) : std::nullopt;
  }

  std::optional<std::vector<StageUnits>> under(double seconds) {
    std::vector<StageUnits> stages;
    int64_t first = 0;
    for (int64_t s = 0; s < stages_; ++s) {
      const int64_t end = units_ - (stages_ - s - 1);  // leaves one unit for each later stage
      std::optional<StageUnits> largest = stage(first, first + 1, static_cast<size_t>(s), seconds);
      if (!largest) return std::nullopt;
      int64_t fits = first + 1, step = 1;
      while (fits < end) {
        const int64_t next = std::min(end, fits + step);
        const auto larger = stage(first, next, static_cast<size_t>(s), seconds);
        if (larger) {
          largest = larger;
          fits = next;
          step *= 2;
        } else if (step == 1) {
          break;
        } else {
          step = std::max<int64_t>(1, step / 4);
        }
      }
      stages.push_back(*largest);
      first = fits;
    }
    return first == units_ ? std::optional(stages) : std::nullopt;
  }

  const RecomputeLadder& ladder_;
  const SplitLimits& limits_;
  const int64_t units_, stages_;
  std::unordered_map<uint64_t, Known> known_;  // by number, first and last
};

class SpareMemory {
 public:
  SpareMemory(const RecomputeLadder& ladder, const SplitLimits& limits, const PipelineSchedule& schedule, int32_t rank,
              std::vector<StageUnits>& stages)
      : ladder_(ladder), limits_(limits), actions_(schedule.of(rank)) {
    for (int32_t s = 0; s < schedule.stages(); ++s) {
      if (schedule.rank_of(s) != rank) continue;
      StageUnits& stage = stages[static_cast<size_t>(s)];
      memory_ += limits.memory[static_cast<size_t>(s)];
      resident_ += without_transient(stage, {});
      stages_of_rank_.emplace(s, RankStage{&stage, figures(stage)});
    }
  }

  void spend() {
    int64_t bytes = needed();
    while (stages_of_rank_.size() > 1) {
      StageUnits* best = nullptr;
      double most = 0;
      int64_t best_bytes = 0;
      for (auto& [s, own] : stages_of_rank_) {
        if (own.stage->recompute_steps == 0) continue;
        const double before = seconds_of(ladder_, *own.stage);
        --own.stage->recompute_steps;
        const Figures kept = own.figures;
        own.figures = figures(*own.stage);
        const int64_t more = needed();
        const double saved = before - seconds_of(ladder_, *own.stage);
        const double rate = saved / static_cast<double>(std::max<int64_t>(1, more - bytes));
        if (saved > 0 && more <= memory_ && rate > most) {
          most = rate;
          best = own.stage;
          best_bytes = more;
        }
        ++own.stage->recompute_steps;
        own.figures = kept;
      }
      if (best == nullptr) return;
      --best->recompute_steps;
      for (auto& [s, own] : stages_of_rank_) {
        if (own.stage == best) own.figures = figures(*best);
      }
      bytes = best_bytes;
    }
  }

 private:
  struct Figures {
    int64_t carried = 0, awaiting = 0, transient = 0;
  };
  struct RankStage {
    StageUnits* stage;
    Figures figures;
  };

  int64_t without_transient(const StageUnits& stage, InFlight in_flight) const {
    return bytes_of(ladder_, stage, in_flight, limits_) - transient_of(ladder_, stage) / limits_.stages_per_rank;
  }
  Figures figures(const StageUnits& stage) const {
    const int64_t resident = without_transient(stage, {});
    return {without_transient(stage, {.gradients = 1}) - resident, without_transient(stage, {.weights = 1}) - resident,
            transient_of(ladder_, stage)};
  }

  // Resident bytes, plus the peak of carried activations, plus the transient peak.
  int64_t needed() const {
    int64_t live = 0, most = 0, transient = 0;
    for (const auto& [s, own] : stages_of_rank_) transient = std::max(transient, own.figures.transient);
    for (const PipelineAction& action : actions_) {
      if (!computes(action)) continue;
      const Figures& of = stages_of_rank_.at(action.stage).figures;
      live += action.work == PipelineWork::kForward         ? of.carried
              : action.work == PipelineWork::kBackward      ? -of.carried
              : action.work == PipelineWork::kInputGradient ? of.awaiting
                                                            : -of.carried - of.awaiting;
      most = std::max(most, live);
    }
    return resident_ + most + transient;
  }

  const RecomputeLadder& ladder_;
  const SplitLimits& limits_;
  std::span<const PipelineAction> actions_;
  std::map<int32_t, RankStage> stages_of_rank_;
  int64_t memory_ = 0, resident_ = 0;
};

}  // namespace

// Keeps the lower convex hull of the (bytes, seconds) points: a level above the line between two others is dominated by
// a mix of layers at those two.
RecomputeLadder::RecomputeLadder(std::vector<RecomputeLevel> levels, const std::vector<Recompute>& allowed,
                                 std::optional<double> exposed) {
  const auto bytes = [](const RecomputeLevel& level) {
    return static_cast<double>(level.chain->carried(0, level.chain->size()));
  };
  const auto seconds = [&](const RecomputeLevel& level) {
    const ChainSeconds of = level.chain->seconds(0, level.chain->size());
    return of.computing() + exposed.value_or(1) * (of.all() - of.computing());
  };
  const auto price = [&](const RecomputeLevel& from, const RecomputeLevel& to) {
    return (seconds(to) - seconds(from)) / (bytes(from) - bytes(to));
  };
  if (!levels.empty()) std::ranges::stable_sort(levels.begin() + 1, levels.end(), std::ranges::greater(), bytes);
  for (const RecomputeLevel& level : levels) {
    if (!levels_.empty()) {
      if (!allowed.empty() && std::ranges::find(allowed, level.what) == allowed.end()) continue;
      if ((level.on_host && !exposed) || bytes(level) >= bytes(levels_.back())) continue;
    }
    while (levels_.size() > 1 && price(levels_.back(), level) <= price(levels_[levels_.size() - 2], levels_.back())) {
      levels_.pop_back();
    }
    levels_.push_back(level);
  }
}

RecomputeLadders::RecomputeLadders(const std::vector<RecomputeLevel>& levels, const std::vector<Recompute>& allowed,
                                   bool host_allowed) {
  ladders.emplace_back(levels, allowed);
  if (!host_allowed || std::ranges::none_of(levels, &RecomputeLevel::on_host)) return;
  const auto is_known = [&](const RecomputeLadder& ladder) {
    return std::ranges::any_of(ladders, [&](const RecomputeLadder& other) {
      return std::ranges::equal(ladder.levels(), other.levels(), {}, &RecomputeLevel::chain, &RecomputeLevel::chain);
    });
  };
  for (const double exposed : {0.0, 0.06, 0.12, 0.25, 0.5, 1.0}) {
    RecomputeLadder ladder(levels, allowed, exposed);
    if (!is_known(ladder)) ladders.push_back(std::move(ladder));
  }
}

int64_t max_recompute_steps(const RecomputeLadder& ladder, int64_t first, int64_t last) {
  return (last - first) * (std::ssize(ladder.levels()) - 1);
}

const RecomputeLevel& level_of(const RecomputeLadder& ladder, const StageUnits& stage, int64_t unit) {
  const int64_t units = stage.last - stage.first;
  const int64_t level = stage.recompute_steps / units + (unit - stage.first < stage.recompute_steps % units ? 1 : 0);
  return ladder.levels()[static_cast<size_t>(level)];
}

// At the boundary between the two levels, the join of the lower one is used.
StageCosts figures_of(const RecomputeLadder& ladder, const StageUnits& stage) {
  const auto [more, less, middle] = levels_of(ladder, stage);
  if (middle == stage.first) return less->stage(stage.first, stage.last);
  return LayerChain::joined(*more, stage.first, middle, *less, stage.last);
}

double seconds_of(const RecomputeLadder& ladder, const StageUnits& stage) {
  const auto [more, less, middle] = levels_of(ladder, stage);
  ChainSeconds seconds = less->seconds(middle, stage.last);
  if (middle > stage.first) seconds += more->seconds(stage.first, middle);
  return seconds.all();
}

int64_t transient_of(const RecomputeLadder& ladder, const StageUnits& stage) {
  const auto [more, less, middle] = levels_of(ladder, stage);
  return std::max(middle > stage.first ? more->transient(stage.first, middle) : 0, less->transient(middle, stage.last));
}

int64_t host_bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight) {
  return in_flight.gradients * sum_of(ladder, stage, &LayerChain::on_host);
}

int64_t bytes_of(const RecomputeLadder& ladder, const StageUnits& stage, InFlight in_flight,
                 const SplitLimits& limits) {
  return held_of(ladder, stage, limits) + activation_bytes(ladder, stage, in_flight, limits);
}

std::optional<std::vector<StageUnits>> split(const RecomputeLadder& ladder, const SplitLimits& limits) {
  return Splitter(ladder, limits).run();
}

void keep_more(const RecomputeLadder& ladder, const SplitLimits& limits, const PipelineSchedule& schedule,
               std::vector<StageUnits>& stages) {
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) SpareMemory(ladder, limits, schedule, rank, stages).spend();
}

}  // namespace shadowgraph
