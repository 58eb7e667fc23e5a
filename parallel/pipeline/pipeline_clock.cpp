#include "parallel/pipeline/pipeline_clock.h"

#include <algorithm>
#include <unordered_map>

#include "shadowgraph/profile/collective_cost.h"

namespace shadowgraph {
namespace {

using enum PipelineWork;

// What a step of a rank's program is: the place of its action in the row, or one of these.
constexpr uint32_t kOptimizerStep = 0xFFFFFFFFU;
constexpr uint32_t kWaitsForward = 0, kWaitsBackward = 1;

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
  if (options_.interconnect == nullptr) return 0;
  const int32_t sender = receives(a) ? (a.work == kReceiveForward ? a.stage - 1 : a.stage + 1) : a.stage;
  const StageFigures& of = stages_.of(sender);
  const bool forward = a.work == kSendForward || a.work == kReceiveForward;
  const int64_t bytes = forward ? of.sends_forward : of.sends_backward;
  if (bytes == 0) return 0;
  ProcessGroupInfo pair{.name = "pp", .size = 2};
  for (const int32_t rank : {schedule_.rank_of(a.stage), other_end(a)})
    pair.ranks.push_back(rank * options_.ranks_apart);
  return collective_cost(CollectiveKind::kSend, bytes, pair, *options_.interconnect, 1).seconds();
}

// From the second micro-batch on gradients are added to those that are there.
double PipelineClock::seconds_of(const PipelineAction& a, std::vector<int32_t>& backwards) const {
  const StageFigures& of = stages_.of(a.stage);
  const auto adding = [&] { return backwards[static_cast<size_t>(a.stage)]++ > 0 ? of.accumulate : 0; };
  switch (a.work) {
    case kForward:
      return of.forward;
    case kBackward:
      return of.backward() + adding();
    case kInputGradient:
      return of.input_gradient;
    case kWeightGradient:
      return of.weight_gradient + adding();
    default:
      return 0;
  }
}

RankProgram PipelineClock::program_of(int32_t rank) const {
  RankProgram program;
  std::unordered_map<uint64_t, uint32_t> received;  // steps
  std::vector<int32_t> backwards(static_cast<size_t>(schedule_.stages()), 0);
  const auto row = schedule_.of(rank);
  for (uint32_t i = 0; i < row.size(); ++i) {
    const PipelineAction& a = row[i];
    if (sends(a)) {
      program.send(static_cast<uint32_t>(other_end(a)), match_of(a), transfer_seconds(a), i);
    } else if (receives(a)) {
      received[match_of(a)] = program.receive(static_cast<uint32_t>(other_end(a)), match_of(a), transfer_seconds(a), i);
    } else if (computes(a)) {
      // Actions that overlap begin together, when the last of their operands is there.
      double seconds = 0;
      uint32_t last = i;
      for (uint32_t k = i;; ++k) {
        const auto wait_for = [&](PipelineWork work, uint32_t cause) {
          const auto found =
              received.find(match_of({.work = work, .stage = row[k].stage, .microbatch = row[k].microbatch}));
          if (found != received.end()) program.wait(found->second, cause);
        };
        if (row[k].work == kForward) wait_for(kReceiveForward, kWaitsForward);
        if (is_backward(row[k])) wait_for(kReceiveBackward, kWaitsBackward);
        seconds += seconds_of(row[k], backwards);
        last = k;
        if (!row[k].overlaps_next) break;
      }
      for (; i < last; ++i) program.compute(0, i);
      program.compute(seconds, last);
    }
  }
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
      (!has_begun ? of.waits.before : steps[i].what == kWaitsForward ? of.waits.forward : of.waits.backward) += waited;
      continue;
    }
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
  const RankTimes times = RankTimes::of(programs, {}, [&](uint32_t rank, const RankStep& step) {
    const auto row = schedule_.of(static_cast<int32_t>(rank));
    return step.what < row.size() ? to_string(row[step.what]) : std::string("the optimizer's step");
  });
  run.seconds_ = times.seconds();
  run.actions_.resize(programs.size());
  for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) {
    read_rank(rank, programs[static_cast<size_t>(rank)], times, run);
  }
}

}  // namespace shadowgraph
