// Simulates the programs of several ranks: computes waiting times and detects deadlocks.
//
//     std::vector<RankProgram> ranks(2);
//     ranks[0].compute(2e-3, /*what=*/0);
//     ranks[0].send(/*to=*/1, /*match=*/7, 1e-4, /*what=*/1);
//     const auto received = ranks[1].receive(/*from=*/0, 7, 1e-4, /*what=*/2);
//     ranks[1].wait(received);
//     ranks[1].compute(2e-3, 3);
//     RankTimes::of(ranks, {}).seconds();                              // 4.1e-3
//
// A rank computes in order and communicates asynchronously. A communication starts when all members have reached it and
// have finished their earlier compute. Communications between the same ranks in one direction, or in one group, run one
// after another. Compute continues unless the program waits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace shadowgraph {

struct RankStep {
  enum class Kind : uint8_t { kCompute, kSend, kReceive, kCollective, kWait };
  Kind kind = Kind::kCompute;
  uint32_t other = 0;  // rank of a send or receive, group of a collective, step of a wait
  uint32_t what = 0;   // caller-defined number
  uint64_t match = 0;  // equal for all members
  double seconds = 0;  // of compute, or of a communication once all members have arrived (the maximum of their values)
};

class RankProgram {
 public:
  // Each function returns the index of the new step.
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
  double begin = 0;  // seconds from the start; of a wait: when the rank reached it
  double end = 0;
};

class RankTimes {
 public:
  // `groups`: the ranks of each group, without duplicates. `name` describes a step in messages. Throws Error on a
  // deadlock or mismatched communication, listing each blocked rank with its step. Linear.
  using StepName = std::function<std::string(uint32_t rank, const RankStep& step)>;
  static RankTimes of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
                      const StepName& name = {});

  double seconds() const { return seconds_; }  // until the last rank has finished, including transfers
  std::span<const RankStepTime> of(uint32_t rank) const { return times_[rank]; }
  double computing(uint32_t rank) const { return computing_[rank]; }
  double end(uint32_t rank) const { return end_[rank]; }  // of its last compute or wait

 private:
  friend class RankRun;
  std::vector<std::vector<RankStepTime>> times_;
  std::vector<double> computing_, end_;
  double seconds_ = 0;
};

// Appended to messages about deadlocks.
constexpr const char* kDeadlockHint =
    ". Every send needs a matching receive on the other rank, in the same order, and every collective must be called "
    "on each rank of its group. Two ranks that exchange data must send before they wait: use batch_isend_irecv, or "
    "isend "
    "before recv";

}  // namespace shadowgraph
