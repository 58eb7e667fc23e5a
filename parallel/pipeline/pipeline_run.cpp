#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallel/ranks/rank_times.h"
#include "parallel/schedule/schedule_check.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"
#include "support/threads.h"

namespace shadowgraph {
namespace {

using enum PipelineWork;

// Values of RankStep::what: the index of an action in the rank's row, or one of these.
constexpr uint32_t kOptimizerStep = 0xFFFFFFFFU;
constexpr uint32_t kFirstTied = 0x80000000U;  // plus the number of the tied parameter
// RankStep::what of waits: their causes.
constexpr uint32_t kWaitsForward = 0, kWaitsBackward = 1, kWaitsUnshard = 2, kWaitsReduce = 3;

// Key that matches a send with its receive: receiving stage, direction and micro-batch.
uint64_t match_of(const PipelineAction& a) {
  const int32_t receiver = receives(a) ? a.stage : other_stage(a);
  return (uint64_t{transfers_forward(a)} << 63) | (static_cast<uint64_t>(receiver) << 32) |
         static_cast<uint32_t>(a.microbatch);
}

void take_bytes(PipelineRank& of, PipelineRank bytes) {
  bytes.computing = of.computing;
  bytes.optimizer = of.optimizer;
  bytes.waits = of.waits;
  of = std::move(bytes);
}

class RankMemory {
 public:
  // `schedule` must include transfers. All arguments must outlive this object.
  RankMemory(const PipelineStages& stages, const PipelineSchedule& schedule, const PipelineRunOptions& options,
             int32_t rank)
      : stages_(stages),
        parts_(stages.parts()),
        schedule_(schedule),
        options_(options),
        rank_(rank),
        allocator_(options.allocator),
        gradients_(parts_.stages.size()),
        in_flight_(parts_.stages.size(), 0) {
    for (int32_t s = 0; s < schedule.stages(); ++s) {
      if (!is_here(s)) continue;
      rank_stages_.push_back(s);
      gradients_[static_cast<size_t>(s)].resize(part(s).slots);
    }
  }

  // Runs two training steps and records the second. `actions`: the rank's compute and transfer actions, in order.
  void run(PipelineRank& of, std::span<PipelineActionTime> actions) {
    const auto keep = [this](int64_t bytes) {
      Held held;
      take(held, bytes);
    };
    for (const int32_t s : rank_stages_) {
      for (const int64_t bytes : part(s).resident) keep(bytes);
      for (const int64_t bytes : part(s).experts) keep(bytes);
      for (const int64_t bytes : part(s).state) keep(bytes);
      if (part(s).gradient_buffer > 0) keep(part(s).gradient_buffer);
      for (const int64_t bytes : part(s).inputs) keep(bytes * schedule_.microbatches());
      if (!options_.preallocate_receives) continue;
      for (int32_t m = 0; m < schedule_.microbatches(); ++m) {
        if (!is_here(s - 1)) {
          for (const PieceEvent& event : part(s).received) keep(event.bytes);
        }
        if (!is_here(s + 1)) {
          for (const PieceEvent& event : part(s).received_gradients) keep(event.bytes);
        }
      }
    }
    // Forward and backward run on separate threads, each with its own cuBLAS handle.
    for (int i = 0; parts_.has_allocator && i < 2; ++i) allocator_.allocate(parts_.workspace);
    const int64_t resident = live_;
    step({});
    figures_ = {.resident = resident, .peak = resident};
    step(actions);
    figures_.stages = rank_stages_;
    figures_.allocated_peak = allocator_.stats().allocated.peak;
    figures_.reserved_peak = allocator_.stats().reserved.peak;
    take_bytes(of, std::move(figures_));
  }

 private:
  struct Held {
    CachingAllocator::Handle handle;
    int64_t bytes = 0;
  };
  using Slots = std::vector<Held>;

  void take(Held& held, int64_t bytes) {
    if (parts_.has_allocator) held.handle = allocator_.allocate(bytes);
    held.bytes = bytes;
    live_ += bytes;
    if (live_ > figures_.peak) {
      figures_.peak = live_;
      figures_.peak_at = now_;
    }
  }

  void drop(Held& held) {
    if (parts_.has_allocator) allocator_.free(held.handle);
    live_ -= held.bytes;
    held = {};
  }
  void drop_all(Slots& slots) {
    for (Held& held : slots) {
      if (held.bytes > 0) drop(held);
    }
  }

  // If a weight's gradient exists, a new one is accumulated into it and freed.
  void play(std::span<const PieceEvent> events, const StagePart& part, Slots& slots, Slots& gradients) {
    for (const PieceEvent& event : events) {
      const bool gradient = event.slot != PieceEvent::kScratch && part.is_gradient[event.slot] != 0;
      const bool is_added = gradient && (part.gradient_buffer > 0 || gradients[event.slot].bytes > 0);
      if (event.slot == PieceEvent::kScratch || is_added) {
        Held transient;
        take(transient, event.bytes);
        drop(transient);
      } else if (gradient) {
        take(gradients[event.slot], event.bytes);
      } else if (event.bytes > 0) {
        take(slots[event.slot], event.bytes);
      } else if (slots[event.slot].bytes > 0) {
        drop(slots[event.slot]);
      }
    }
  }

  void act(const PipelineAction& a) {
    now_ = a;
    if (sends(a)) return;
    const StagePart& of = part(a.stage);
    Slots& slots = slots_of(a.stage, a.microbatch);
    Slots& gradients = gradients_[static_cast<size_t>(a.stage)];
    if (a.work == kReceiveForward) return receive(of.received, slots);
    if (a.work == kReceiveBackward) return receive(of.received_gradients, slots);
    if (!computes(a)) return;
    play(of.pieces[a.work], of, slots, gradients);
    count(a);
    // Within a rank, the gradient is passed to the previous stage directly.
    if (is_backward(a) && is_here(a.stage - 1)) {
      Slots& before = slots_of(a.stage - 1, a.microbatch);
      for (const PieceEvent& event : part(a.stage - 1).received_gradients) take(before[event.slot], event.bytes);
    }
    forget_if_empty(a.stage, a.microbatch);
  }

  void receive(std::span<const PieceEvent> events, Slots& slots) {
    if (options_.preallocate_receives) return;
    for (const PieceEvent& event : events) take(slots[event.slot], event.bytes);
  }

  void count(const PipelineAction& a) {
    const StageCosts& of = stages_.of(a.stage);
    if (a.work == kForward) {
      ++in_flight_[static_cast<size_t>(a.stage)];
      carried_ += of.carried;
      on_host_ += of.on_host;
    } else if (a.work == kBackward || a.work == kWeightGradient) {
      --in_flight_[static_cast<size_t>(a.stage)];
      carried_ -= of.carried;
      on_host_ -= of.on_host;
    }
    figures_.host_peak = std::max(figures_.host_peak, on_host_);
    figures_.activations_peak = std::max(figures_.activations_peak, carried_);
    figures_.microbatches_peak =
        std::max(figures_.microbatches_peak, std::accumulate(in_flight_.begin(), in_flight_.end(), int32_t{0}));
  }

  void step(std::span<PipelineActionTime> actions) {
    size_t at = 0;
    for (const PipelineAction& a : schedule_.of(rank_)) {
      if (!computes(a) && !transfers(a)) continue;
      act(a);
      if (at < actions.size()) actions[at++].live = live_;
    }
    optimizer_step();
    // zero_grad, and tensors that the program keeps until the end of the step.
    for (auto& [key, slots] : slots_) drop_all(slots);
    slots_.clear();
    for (Slots& gradients : gradients_) drop_all(gradients);
  }

  void optimizer_step() {
    now_ = {.stage = -1};
    for (const int32_t s : rank_stages_) {
      Slots slots(part(s).slots);
      play(part(s).optimizer, part(s), slots, slots);
      drop_all(slots);
    }
  }

  static uint64_t key_of(int32_t stage, int32_t microbatch) {
    return static_cast<uint64_t>(stage) << 32 | static_cast<uint32_t>(microbatch);
  }
  Slots& slots_of(int32_t stage, int32_t microbatch) {
    Slots& slots = slots_[key_of(stage, microbatch)];
    if (slots.empty()) slots.resize(part(stage).slots);
    return slots;
  }

  // Removes finished micro-batches, of which there may be thousands.
  void forget_if_empty(int32_t stage, int32_t microbatch) {
    const auto found = slots_.find(key_of(stage, microbatch));
    if (std::ranges::none_of(found->second, [](const Held& held) { return held.bytes > 0; })) slots_.erase(found);
  }

  const StagePart& part(int32_t stage) const { return parts_.stages[static_cast<size_t>(stage)]; }
  bool is_here(int32_t stage) const {
    return stage >= 0 && stage < schedule_.stages() && schedule_.rank_of(stage) == rank_;
  }

  const PipelineStages& stages_;
  const StageParts& parts_;
  const PipelineSchedule& schedule_;
  const PipelineRunOptions& options_;
  int32_t rank_;
  std::vector<int32_t> rank_stages_;
  CachingAllocator allocator_;
  std::unordered_map<uint64_t, Slots> slots_;  // by stage and micro-batch, while non-empty
  std::vector<Slots> gradients_;               // by stage
  std::vector<int32_t> in_flight_;             // by stage: micro-batches in flight
  PipelineAction now_{.stage = -1};
  int64_t live_ = 0, carried_ = 0, on_host_ = 0;
  PipelineRank figures_;
};

}  // namespace

class PipelineClock {
 public:
  // `schedule` must include transfers. All arguments must outlive run().
  PipelineClock(const PipelineStages& stages, const PipelineSchedule& schedule, const PipelineRunOptions& options)
      : stages_(stages), schedule_(schedule), options_(options) {
    unsharded_.resize(static_cast<size_t>(schedule.stages()), 0);
    for (int32_t s = 0; s < schedule.stages(); ++s) {
      const StageCosts& of = stages.of(s);
      transfers_.push_back({.forward = seconds_between(s, s + 1, of.sends_forward),
                            .backward = seconds_between(s, s - 1, of.sends_backward)});
    }
    for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
      groups_.push_back({static_cast<uint32_t>(rank)});
      for (const PipelineAction& a : schedule.of(rank)) {
        if (a.work == kUnshard) unsharded_[static_cast<size_t>(a.stage)] = 1;
      }
    }
    for (const TiedParameter& tied : stages.tied()) {
      std::vector<uint32_t> ranks;
      for (const int32_t stage : tied.stages) ranks.push_back(static_cast<uint32_t>(schedule.rank_of(stage)));
      std::ranges::sort(ranks);
      ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
      groups_.push_back(std::move(ranks));
    }
  }

  void run(PipelineRun& run) {
    std::vector<RankProgram> programs;
    for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) programs.push_back(program_of(rank));
    const RankTimes times = RankTimes::of(programs, groups_, [&](uint32_t rank, const RankStep& step) {
      const auto row = schedule_.of(static_cast<int32_t>(rank));
      if (step.what < row.size()) return to_string(row[step.what]);
      if (step.what == kOptimizerStep) return std::string("the optimizer step");
      return "the gradient reduction of " + stages_.tied()[step.what - kFirstTied].name;
    });
    run.seconds_ = times.seconds();
    run.actions_.resize(programs.size());
    for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) {
      read_rank(rank, programs[static_cast<size_t>(rank)], times, run);
    }
  }

 private:
  // Seconds of an action: compute, and exposed communication inside it.
  struct Parts {
    double computing = 0, exposed = 0;
  };
  RankProgram program_of(int32_t rank) const {
    RankProgram program;
    std::unordered_map<uint64_t, uint32_t> received, sent;  // steps
    std::unordered_map<int32_t, uint32_t> unshards;         // steps, by stage
    std::vector<uint32_t> reduces;
    std::unordered_map<int32_t, std::deque<uint32_t>> reduces_of;  // not waited for yet, by stage
    std::vector<int32_t> backwards(static_cast<size_t>(schedule_.stages()), 0);
    const auto row = schedule_.of(rank);
    received.reserve(row.size());
    sent.reserve(row.size());
    for (uint32_t i = 0; i < row.size(); ++i) {
      const PipelineAction& a = row[i];
      if (sends(a)) {
        sent[match_of(a)] = program.send(other_end(a), match_of(a), transfer_seconds(a), i);
      } else if (const auto send = waited_send(a)) {
        const uint32_t cause = *send == kSendForward ? kWaitsForward : kWaitsBackward;
        program.wait(sent.at(match_of({.work = *send, .stage = a.stage, .microbatch = a.microbatch})), cause);
      } else if (a.work == kWaitReduce) {
        program.wait(reduces_of[a.stage].front(), kWaitsReduce);
        reduces_of[a.stage].pop_front();
      } else if (receives(a)) {
        received[match_of(a)] = program.receive(other_end(a), match_of(a), transfer_seconds(a), i);
      } else if (a.work == kUnshard || a.work == kReduceGradients) {
        const StageCosts& of = stages_.of(a.stage);
        const double seconds = a.work == kUnshard ? of.unshard : of.reduce_gradients;
        const uint32_t step = program.collective(static_cast<uint32_t>(rank), i, seconds, i);
        if (a.work == kUnshard) {
          unshards[a.stage] = step;
        } else {
          reduces_of[a.stage].push_back(reduces.emplace_back(step));
        }
      } else if (computes(a)) {
        // Overlapping actions start together, when all of their operands have arrived.
        std::vector<Parts> together;
        uint32_t last = i;
        for (uint32_t k = i;; ++k) {
          const auto wait_for = [&](PipelineWork work, uint32_t cause) {
            const auto found =
                received.find(match_of({.work = work, .stage = row[k].stage, .microbatch = row[k].microbatch}));
            if (found != received.end()) program.wait(found->second, cause);
          };
          if (const auto gathered = unshards.extract(row[k].stage)) program.wait(gathered.mapped(), kWaitsUnshard);
          if (row[k].work == kForward) wait_for(kReceiveForward, kWaitsForward);
          if (is_backward(row[k])) wait_for(kReceiveBackward, kWaitsBackward);
          together.push_back(parts_of(row[k], backwards));
          last = k;
          if (!row[k].overlaps_next) break;
        }
        for (; i < last; ++i) program.compute(0, i);
        program.compute(seconds_of(together), last);
      }
    }
    for (size_t t = 0; t < stages_.tied().size(); ++t) {
      const auto group = static_cast<size_t>(schedule_.ranks()) + t;
      const auto& ranks = groups_[group];
      if (ranks.size() < 2 || std::ranges::find(ranks, static_cast<uint32_t>(rank)) == ranks.end()) continue;
      reduces.push_back(
          program.collective(static_cast<uint32_t>(group), t, tied_seconds(t), kFirstTied + static_cast<uint32_t>(t)));
    }
    for (const uint32_t step : reduces) program.wait(step, kWaitsReduce);
    double optimizer = 0;
    for (int32_t s = 0; s < schedule_.stages(); ++s) {
      if (schedule_.rank_of(s) == rank) optimizer += stages_.of(s).optimizer;
    }
    program.compute(optimizer, kOptimizerStep);
    return program;
  }

  // From the second micro-batch on, gradients are accumulated.
  Parts parts_of(const PipelineAction& a, std::vector<int32_t>& backwards) const {
    const StageCosts& of = stages_.of(a.stage);
    const PieceSeconds& exposed = unsharded_[static_cast<size_t>(a.stage)] != 0 ? of.exposed_unsharded : of.exposed;
    const auto adding = [&] { return backwards[static_cast<size_t>(a.stage)]++ > 0 ? of.accumulate : 0; };
    const double input = of.input_gradient - of.exposed.input_gradient;
    const double weight = of.weight_gradient - of.exposed.weight_gradient;
    const double computing = a.work == kForward         ? of.forward - of.exposed.forward
                             : a.work == kBackward      ? input + weight + adding()
                             : a.work == kInputGradient ? input
                                                        : weight + adding();
    // Host copies overlap with compute.
    return {computing, std::max(exposed[a.work], of.copies[a.work] - computing)};
  }

  // Overlapping actions share the device and the network; each takes at least its own time.
  double seconds_of(std::span<const Parts> together) const {
    double computing = 0, exposed = 0, longest = 0;
    for (const Parts& parts : together) {
      computing += parts.computing;
      exposed += parts.exposed;
      longest = std::max(longest, parts.computing + parts.exposed);
    }
    const double apart = computing + exposed;
    return apart - options_.overlap * (apart - std::max({computing, exposed, longest}));
  }

  double tied_seconds(size_t number) const {
    const std::vector<uint32_t>& ranks = groups_[static_cast<size_t>(schedule_.ranks()) + number];
    if (options_.interconnect == nullptr) return 0;
    ProcessGroupInfo group{.name = "tied", .size = static_cast<int64_t>(ranks.size())};
    for (const uint32_t rank : ranks) group.ranks.push_back(rank * options_.rank_stride);
    const int64_t bytes = stages_.tied()[number].gradient_bytes;
    return collective_cost(CollectiveKind::kAllReduce, bytes, group, *options_.interconnect, 1).seconds();
  }

  double transfer_seconds(const PipelineAction& a) const {
    const auto sender = static_cast<size_t>(receives(a) ? other_stage(a) : a.stage);
    return transfers_forward(a) ? transfers_[sender].forward : transfers_[sender].backward;
  }

  double seconds_between(int32_t sender, int32_t receiver, int64_t bytes) const {
    if (options_.interconnect == nullptr || bytes == 0 || receiver < 0 || receiver == schedule_.stages()) return 0;
    ProcessGroupInfo pair{.name = "pp", .size = 2};
    for (const int32_t stage : {sender, receiver})
      pair.ranks.push_back(schedule_.rank_of(stage) * options_.rank_stride);
    return collective_cost(CollectiveKind::kSend, bytes, pair, *options_.interconnect, 1).seconds();
  }

  uint32_t other_end(const PipelineAction& a) const { return static_cast<uint32_t>(schedule_.rank_of(other_stage(a))); }

  void read_rank(int32_t rank, const RankProgram& program, const RankTimes& times, PipelineRun& run) const {
    const auto steps = program.steps();
    const auto at = times.of(static_cast<uint32_t>(rank));
    const auto row = schedule_.of(rank);
    PipelineRank& of = run.ranks_[static_cast<size_t>(rank)];
    auto& actions = run.actions_[static_cast<size_t>(rank)];
    bool has_begun = false;
    double group_begin = -1;  // of the current group of overlapping actions
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == RankStep::Kind::kWait) {
        const double waited = at[i].end - at[i].begin;
        (!has_begun                        ? of.waits.before
         : steps[i].what == kWaitsForward  ? of.waits.forward
         : steps[i].what == kWaitsBackward ? of.waits.backward
         : steps[i].what == kWaitsUnshard  ? of.waits.unshard
                                           : of.waits.reduce) += waited;
        continue;
      }
      if (steps[i].kind == RankStep::Kind::kCollective) continue;
      if (steps[i].what == kOptimizerStep) {
        of.optimizer = steps[i].seconds;
        continue;
      }
      const PipelineAction& a = row[steps[i].what];
      PipelineActionTime time{.action = a, .begin = at[i].begin, .end = at[i].end};
      if (computes(a)) {
        has_begun = true;
        if (group_begin >= 0) time.begin = group_begin;
        group_begin = a.overlaps_next ? time.begin : -1;
      }
      actions.push_back(time);
    }
    // Overlapping actions end together.
    for (size_t i = actions.size(); i-- > 1;) {
      if (actions[i - 1].action.overlaps_next) actions[i - 1].end = actions[i].end;
    }
    of.computing = times.computing(static_cast<uint32_t>(rank));
    of.waits.after = times.seconds() - times.end(static_cast<uint32_t>(rank));
  }

  const PipelineStages& stages_;
  const PipelineSchedule& schedule_;
  const PipelineRunOptions& options_;
  std::vector<PieceSeconds> transfers_;        // by stage: sends to the next and to the previous stage
  std::vector<char> unsharded_;                // by stage: whether the schedule gathers its parameters
  std::vector<std::vector<uint32_t>> groups_;  // each rank alone, then the ranks of each tied parameter
};

const OptionTable<PipelineRunOptions>& PipelineRunOptions::table() {
  static const auto table =
      OptionTable<PipelineRunOptions>()
          .group("Pipeline")
          .add("rank_stride", &PipelineRunOptions::rank_stride,
               "Processes per stage, e.g. 8 with tensor parallelism: distance between pipeline neighbors", {.min = 1})
          .add("preallocate_receives", &PipelineRunOptions::preallocate_receives,
               "Allocate all receive buffers up front, as torch.distributed.pipelining does")
          .add("overlap", &PipelineRunOptions::overlap,
               "Fraction of exposed communication hidden by the compute of an overlapped action", {.min = 0, .max = 1});
  return table;
}

PipelineRun PipelineRun::of(PipelineStages stages, const PipelineSchedule& schedule,
                            const PipelineRunOptions& options) {
  if (stages.count() != schedule.stages()) {
    throw Error(fmt::format("the schedule {} has {} stages, but the step is split into {}", schedule.name(),
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
  // The simulated allocators take most of the time.
  for_each_parallel(run.ranks_.size(), play, run.stages_->parts().has_allocator ? options.threads : 1);
  return run;
}

void PipelineRun::take_bytes(const PipelineRun& other) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    shadowgraph::take_bytes(ranks_[rank], other.ranks_[rank]);
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
