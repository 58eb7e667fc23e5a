#include "parallel/pipeline/pipeline_clock.h"

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "parallel/schedule/schedule_check.h"
#include "shadowgraph/profile/collective_cost.h"

namespace shadowgraph {
namespace {

using enum PipelineWork;

// What a step of a rank's program is: the place of its action in the row, or one of these.
constexpr uint32_t kOptimizerStep = 0xFFFFFFFFU;
constexpr uint32_t kFirstTied = 0x80000000U;  // and the number of the parameter
// Causes of waiting.
constexpr uint32_t kWaitsForward = 0, kWaitsBackward = 1, kWaitsUnshard = 2, kWaitsReduce = 3;

bool sends(const PipelineAction& a) { return a.work == kSendForward || a.work == kSendBackward; }
bool receives(const PipelineAction& a) { return a.work == kReceiveForward || a.work == kReceiveBackward; }
bool is_backward(const PipelineAction& a) { return a.work == kBackward || a.work == kInputGradient; }

// Both ends of a transfer name the stage that receives, the direction and the micro-batch.
uint64_t match_of(const PipelineAction& a) {
  const bool forward = a.work == kSendForward || a.work == kReceiveForward;
  const int32_t receiver = receives(a) ? a.stage : forward ? a.stage + 1 : a.stage - 1;
  return (uint64_t{forward} << 63) | (static_cast<uint64_t>(receiver) << 32) | static_cast<uint32_t>(a.microbatch);
}

}  // namespace

int32_t PipelineClock::other_end(const PipelineAction& a) const {
  const bool up = a.work == kSendForward || a.work == kReceiveBackward;
  return schedule_.rank_of(a.stage + (up ? 1 : -1));
}

double PipelineClock::transfer_seconds(const PipelineAction& a) const {
  const auto sender =
      static_cast<size_t>(receives(a) ? (a.work == kReceiveForward ? a.stage - 1 : a.stage + 1) : a.stage);
  return a.work == kSendForward || a.work == kReceiveForward ? transfers_[sender].forward : transfers_[sender].backward;
}

double PipelineClock::seconds_between(int32_t sender, int32_t receiver, int64_t bytes) const {
  if (options_.interconnect == nullptr || bytes == 0 || receiver < 0 || receiver == schedule_.stages()) return 0;
  ProcessGroupInfo pair{.name = "pp", .size = 2};
  for (const int32_t stage : {sender, receiver}) pair.ranks.push_back(schedule_.rank_of(stage) * options_.ranks_apart);
  return collective_cost(CollectiveKind::kSend, bytes, pair, *options_.interconnect, 1).seconds();
}

PipelineClock::PipelineClock(const PipelineStages& stages, const PipelineSchedule& schedule,
                             const PipelineRunOptions& options)
    : stages_(stages), schedule_(schedule), options_(options) {
  unsharded_.resize(static_cast<size_t>(schedule.stages()), 0);
  for (int32_t s = 0; s < schedule.stages(); ++s) {
    const StageFigures& of = stages.of(s);
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

double PipelineClock::tied_seconds(size_t number) const {
  const std::vector<uint32_t>& ranks = groups_[static_cast<size_t>(schedule_.ranks()) + number];
  if (options_.interconnect == nullptr) return 0;
  ProcessGroupInfo group{.name = "tied", .size = static_cast<int64_t>(ranks.size())};
  for (const uint32_t rank : ranks) group.ranks.push_back(rank * options_.ranks_apart);
  const int64_t bytes = stages_.tied()[number].gradient_bytes;
  return collective_cost(CollectiveKind::kAllReduce, bytes, group, *options_.interconnect, 1).seconds();
}

// From the second micro-batch on gradients are added to those that are there.
PipelineClock::Parts PipelineClock::parts_of(const PipelineAction& a, std::vector<int32_t>& backwards) const {
  const StageFigures& of = stages_.of(a.stage);
  const PieceSeconds& exposed = unsharded_[static_cast<size_t>(a.stage)] != 0 ? of.exposed_unsharded : of.exposed;
  const auto adding = [&] { return backwards[static_cast<size_t>(a.stage)]++ > 0 ? of.accumulate : 0; };
  const double input = of.input_gradient - of.exposed.input_gradient;
  const double weight = of.weight_gradient - of.exposed.weight_gradient;
  // Copies to the host and back run beside all else.
  const auto parts = [](double computing, double waiting, double copies) {
    return Parts{computing, std::max(waiting, copies - computing)};
  };
  switch (a.work) {
    case kForward:
      return parts(of.forward - of.exposed.forward, exposed.forward, of.copies.forward);
    case kBackward:
      return parts(input + weight + adding(), exposed.backward, of.copies.backward);
    case kInputGradient:
      return parts(input, exposed.input_gradient, of.copies.input_gradient);
    case kWeightGradient:
      return parts(weight + adding(), exposed.weight_gradient, of.copies.weight_gradient);
    default:
      return {};
  }
}

// Actions that overlap compute in turns, and their collectives go one after another; each takes its own time at least.
double PipelineClock::seconds_of(std::span<const Parts> together) const {
  double computing = 0, exposed = 0, longest = 0;
  for (const Parts& parts : together) {
    computing += parts.computing;
    exposed += parts.exposed;
    longest = std::max(longest, parts.computing + parts.exposed);
  }
  const double apart = computing + exposed;
  return apart - options_.overlap * (apart - std::max({computing, exposed, longest}));
}

RankProgram PipelineClock::program_of(int32_t rank) const {
  RankProgram program;
  std::unordered_map<uint64_t, uint32_t> received, sent;  // steps
  std::unordered_map<int32_t, uint32_t> unshards;         // steps, by stage
  std::vector<uint32_t> reduces;
  std::unordered_map<int32_t, std::deque<uint32_t>> reduces_of;  // not waited for, by stage
  std::vector<int32_t> backwards(static_cast<size_t>(schedule_.stages()), 0);
  const auto row = schedule_.of(rank);
  received.reserve(row.size());
  sent.reserve(row.size());
  for (uint32_t i = 0; i < row.size(); ++i) {
    const PipelineAction& a = row[i];
    if (sends(a)) {
      sent[match_of(a)] = program.send(static_cast<uint32_t>(other_end(a)), match_of(a), transfer_seconds(a), i);
    } else if (const auto send = waited_send(a)) {
      const uint32_t cause = *send == kSendForward ? kWaitsForward : kWaitsBackward;
      program.wait(sent.at(match_of({.work = *send, .stage = a.stage, .microbatch = a.microbatch})), cause);
    } else if (a.work == kWaitReduce) {
      program.wait(reduces_of[a.stage].front(), kWaitsReduce);
      reduces_of[a.stage].pop_front();
    } else if (receives(a)) {
      received[match_of(a)] = program.receive(static_cast<uint32_t>(other_end(a)), match_of(a), transfer_seconds(a), i);
    } else if (a.work == kUnshard || a.work == kReduceGradients) {
      const StageFigures& of = stages_.of(a.stage);
      const double seconds = a.work == kUnshard ? of.unshard : of.reduce_gradients;
      const uint32_t step = program.collective(static_cast<uint32_t>(rank), i, seconds, i);
      if (a.work == kUnshard) {
        unshards[a.stage] = step;
      } else {
        reduces.push_back(step);
        reduces_of[a.stage].push_back(step);
      }
    } else if (computes(a)) {
      // Actions that overlap begin together, when the last of their operands is there.
      std::vector<Parts> together;
      uint32_t last = i;
      for (uint32_t k = i;; ++k) {
        const auto wait_for = [&](PipelineWork work, uint32_t cause) {
          const auto found =
              received.find(match_of({.work = work, .stage = row[k].stage, .microbatch = row[k].microbatch}));
          if (found != received.end()) program.wait(found->second, cause);
        };
        const auto gathered = unshards.find(row[k].stage);
        if (gathered != unshards.end()) {
          program.wait(gathered->second, kWaitsUnshard);
          unshards.erase(gathered);
        }
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

void PipelineClock::read_rank(int32_t rank, const RankProgram& program, const RankTimes& times,
                              PipelineRun& run) const {
  const auto steps = program.steps();
  const auto at = times.of(static_cast<uint32_t>(rank));
  const auto row = schedule_.of(rank);
  PipelineRank& of = run.ranks_[static_cast<size_t>(rank)];
  auto& actions = run.actions_[static_cast<size_t>(rank)];
  bool has_begun = false;
  double group_begin = -1;  // of actions that overlap
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
  // Actions that overlap end together.
  for (size_t i = actions.size(); i-- > 1;) {
    if (actions[i - 1].action.overlaps_next) actions[i - 1].end = actions[i].end;
  }
  of.computing = times.computing(static_cast<uint32_t>(rank));
  of.waits.after = times.seconds() - times.end(static_cast<uint32_t>(rank));
}

void PipelineClock::run(PipelineRun& run) {
  std::vector<RankProgram> programs;
  for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) programs.push_back(program_of(rank));
  const RankTimes times = RankTimes::of(programs, groups_, [&](uint32_t rank, const RankStep& step) {
    const auto row = schedule_.of(static_cast<int32_t>(rank));
    if (step.what < row.size()) return to_string(row[step.what]);
    if (step.what == kOptimizerStep) return std::string("the optimizer's step");
    return "the sum of gradients of " + stages_.tied()[step.what - kFirstTied].name;
  });
  run.seconds_ = times.seconds();
  run.actions_.resize(programs.size());
  for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) {
    read_rank(rank, programs[static_cast<size_t>(rank)], times, run);
  }
}

}  // namespace shadowgraph
