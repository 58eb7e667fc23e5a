// Runs programs of many ranks against each other: who waits for whom, how long, and where they would wait for ever.
//
//     std::vector<RankProgram> ranks(2);
//     ranks[0].compute(2e-3, /*what=*/0);
//     ranks[0].send(/*to=*/1, /*match=*/7, 1e-4, /*what=*/1);
//     const auto received = ranks[1].receive(/*from=*/0, 7, 1e-4, /*what=*/2);
//     ranks[1].wait(received);
//     ranks[1].compute(2e-3, 3);
//     RankTimes::of(ranks, {}).seconds();                              // 4.1e-3
//
// A rank computes in order, and what it communicates runs beside that. A communication begins when all who take part
// have come to it and are done with what they computed before. One follows another between the same ranks in one
// direction, and in one group. Computing goes on unless the program waits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"

namespace shadowgraph {

struct RankStep {
  enum class Kind : uint8_t { kCompute, kSend, kReceive, kCollective, kWait };
  Kind kind = Kind::kCompute;
  uint32_t other = 0;  // rank of a send or receive, group of a collective, step of a wait
  uint32_t what = 0;   // the caller's number
  uint64_t match = 0;  // all who take part give the same
  double seconds = 0;  // of computing; of communicating, once all are there: the longest that anyone gives
};

class RankProgram {
 public:
  // Each gives the number of its step.
  uint32_t compute(double seconds, uint32_t what) { return add({RankStep::Kind::kCompute, 0, what, 0, seconds}); }
  uint32_t send(uint32_t to, uint64_t match, double seconds, uint32_t what) {
    return add({RankStep::Kind::kSend, to, what, match, seconds});
  }
  uint32_t receive(uint32_t from, uint64_t match, double seconds, uint32_t what) {
    return add({RankStep::Kind::kReceive, from, what, match, seconds});
  }
  uint32_t collective(uint32_t group, uint64_t match, double seconds, uint32_t what) {
    return add({RankStep::Kind::kCollective, group, what, match, seconds});
  }
  uint32_t wait(uint32_t step, uint32_t what = 0) { return add({RankStep::Kind::kWait, step, what, 0, 0}); }
  std::span<const RankStep> steps() const { return steps_; }

 private:
  uint32_t add(const RankStep& step) {
    steps_.push_back(step);
    return static_cast<uint32_t>(steps_.size() - 1);
  }
  std::vector<RankStep> steps_;
};

struct RankStepTime {
  double begin = 0;  // seconds, from the beginning of all; of a wait: when the rank came to it
  double end = 0;
};

class RankTimes {
 public:
  // `groups`: the ranks of each, by number; each is in it once. `name` gives a step in words, for errors. Throws Error
  // if ranks wait for ever, or meet in steps that do not match: each rank that is stuck is named with its step. Linear.
  using StepName = std::function<std::string(uint32_t rank, const RankStep& step)>;
  static RankTimes of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
                      const StepName& name = {});

  double seconds() const { return seconds_; }  // until the last rank is done, transfers included
  std::span<const RankStepTime> of(uint32_t rank) const { return times_[rank]; }
  double computing(uint32_t rank) const { return computing_[rank]; }
  double end(uint32_t rank) const { return end_[rank]; }  // of its computing

 private:
  friend class RankRun;
  std::vector<std::vector<RankStepTime>> times_;
  std::vector<double> computing_, end_;
  double seconds_ = 0;
};

constexpr const char* kHowToMeet =
    ". Every send needs a receive at its other rank, in the same order, and every collective a call at each rank of "
    "its "
    "group. Two ranks that wait for each other first issue what they send: batch_isend_irecv, or isend before recv";

}  // namespace shadowgraph
