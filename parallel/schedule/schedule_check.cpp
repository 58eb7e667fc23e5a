#include "parallel/schedule/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using enum PipelineWork;

constexpr int32_t kMostStages = 1 << 16;
constexpr int32_t kMostMicrobatches = 1 << 20;
constexpr int64_t kMostActions = int64_t{1} << 26;

class ScheduleCheck {
 public:
  ScheduleCheck(const std::string& name, const PipelineSchedule::Rows& rows) : name_(name), rows_(rows) {}

  ScheduleFacts run() {
    place_stages();
    check_counts();
    check_order();
    return std::move(facts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw Error("schedule " + name_ + ": " + why); }

  void place_stages() {
    if (rows_.empty()) refuse("it has no ranks");
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      for (size_t i = 0; i < rows_[rank].size(); ++i) {
        const PipelineAction& a = rows_[rank][i];
        const bool both_compute = computes(a) && i + 1 < rows_[rank].size() && computes(rows_[rank][i + 1]);
        if (a.overlaps_next && !both_compute) refuse(fmt::format("{} overlaps nothing that computes", to_string(a)));
        if (a.stage < 0 || a.stage >= kMostStages) refuse(fmt::format("{}: no such stage", to_string(a)));
        const bool of_microbatch = computes(a) || transfers(a) || waited_send(a);
        if (of_microbatch && a.microbatch < 0) {
          refuse(fmt::format("{} names no micro-batch", to_string(a)));
        }
        if (a.microbatch >= kMostMicrobatches) refuse(fmt::format("{}: no such micro-batch", to_string(a)));
        facts_.microbatches = std::max(facts_.microbatches, a.microbatch + 1);
        facts_.has_transfers |= transfers(a);
        auto& rank_of = facts_.rank_of;
        if (static_cast<size_t>(a.stage) >= rank_of.size()) rank_of.resize(a.stage + 1, -1);
        if (rank_of[a.stage] < 0) rank_of[a.stage] = static_cast<int32_t>(rank);
        if (rank_of[a.stage] != static_cast<int32_t>(rank)) {
          refuse(fmt::format("stage {} is on ranks {} and {} ({})", a.stage, rank_of[a.stage], rank, to_string(a)));
        }
      }
    }
    stages_ = static_cast<int32_t>(facts_.rank_of.size());
    if (stages_ == 0 || facts_.microbatches == 0) refuse("it computes nothing");
    if (int64_t{stages_} * facts_.microbatches > kMostActions / kPipelineWorks) refuse("it is too large");
    for (int32_t s = 0; s < stages_; ++s) {
      if (facts_.rank_of[s] < 0) refuse(fmt::format("stage {} is on no rank", s));
    }
  }

  void check_counts() const {
    DoneActions seen(stages_, facts_.microbatches);
    for (const auto& row : rows_) {
      std::vector<int32_t> reduced(stages_, 0);
      for (const PipelineAction& a : row) {
        if (const auto send = waited_send(a); send && !seen.has(*send, a.stage, a.microbatch)) {
          refuse(fmt::format("{} waits for no send before it", to_string(a)));
        }
        if (a.work == kReduceGradients) ++reduced[a.stage];
        if (a.work == kWaitReduce && reduced[a.stage]-- == 0) {
          refuse(fmt::format("{} waits for no REDUCE_GRAD before it", to_string(a)));
        }
        if (!computes(a) && !transfers(a) && !waited_send(a)) continue;
        if (seen.has(a.work, a.stage, a.microbatch)) refuse(fmt::format("{} is there twice", to_string(a)));
        seen.add(a);
      }
    }
    for (int32_t s = 0; s < stages_; ++s) {
      for (int32_t m = 0; m < facts_.microbatches; ++m) {
        if (!seen.has(kForward, s, m)) refuse(fmt::format("{}F{} is missing", s, m));
        const bool whole = seen.has(kBackward, s, m);
        const bool input = seen.has(kInputGradient, s, m), weight = seen.has(kWeightGradient, s, m);
        if (whole && (input || weight))
          refuse(fmt::format("{0}B{1} and {0}{2}{1} are one too many", s, m, input ? 'I' : 'W'));
        if (!whole && !input) refuse(fmt::format("neither {0}B{1} nor {0}I{1} is there", s, m));
        if (!whole && !weight) refuse(fmt::format("{}W{} is missing", s, m));
      }
    }
  }

  bool is_ready(const PipelineAction& a, const DoneActions& done) const {
    const int32_t s = a.stage, m = a.microbatch;
    const bool first = s == 0, last = s + 1 == stages_;
    switch (a.work) {
      case kForward:
        return first || (by_transfer(s - 1, s) ? done.has(kReceiveForward, s, m) : done.has(kForward, s - 1, m));
      case kBackward:
      case kInputGradient:
        if (!done.has(kForward, s, m)) return false;
        return last || (by_transfer(s, s + 1) ? done.has(kReceiveBackward, s, m) : done.has_input_gradient(s + 1, m));
      case kWeightGradient:
        return done.has(kInputGradient, s, m);
      case kSendForward:
        return !last && done.has(kForward, s, m);
      case kReceiveForward:
        return !first && done.has(kSendForward, s - 1, m);
      case kSendBackward:
        return !first && done.has_input_gradient(s, m);
      case kReceiveBackward:
        return !last && done.has(kSendBackward, s + 1, m);
      // The other rank has asked for it.
      case kWaitSendForward:
        return done.has(kReceiveForward, s + 1, m);
      case kWaitSendBackward:
        return done.has(kReceiveBackward, s - 1, m);
      default:
        return true;
    }
  }
  bool by_transfer(int32_t from, int32_t to) const {
    return facts_.has_transfers && facts_.rank_of[from] != facts_.rank_of[to];
  }

  // Receives are asked for ahead, so a rank goes past one that nobody has sent yet; what needs it waits.
  void check_order() const {
    DoneActions done(stages_, facts_.microbatches);
    std::vector<size_t> next(rows_.size(), 0);
    std::vector<std::vector<PipelineAction>> asked(rows_.size());
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        std::erase_if(asked[rank], [&](const PipelineAction& a) {
          const bool ready = is_ready(a, done);
          if (ready) done.add(a);
          return ready;
        });
        for (; next[rank] < rows_[rank].size(); ++next[rank]) {
          const PipelineAction& a = rows_[rank][next[rank]];
          if (is_ready(a, done)) {
            done.add(a);
          } else if (a.work == kReceiveForward || a.work == kReceiveBackward) {
            asked[rank].push_back(a);
          } else {
            break;
          }
          goes_on = true;
        }
      }
    }
    std::string stuck;
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      if (next[rank] == rows_[rank].size() && asked[rank].empty()) continue;
      const PipelineAction& a = next[rank] < rows_[rank].size() ? rows_[rank][next[rank]] : asked[rank].front();
      stuck += fmt::format("{}rank {} at {}", stuck.empty() ? "" : ", ", rank, to_string(a));
    }
    if (!stuck.empty()) refuse("its ranks wait for what never comes: " + stuck);
  }

  const std::string& name_;
  const PipelineSchedule::Rows& rows_;
  int32_t stages_ = 0;
  ScheduleFacts facts_;
};

}  // namespace

std::optional<PipelineWork> waited_send(const PipelineAction& a) {
  if (a.work == kWaitSendForward) return kSendForward;
  if (a.work == kWaitSendBackward) return kSendBackward;
  return std::nullopt;
}

ScheduleFacts check_schedule(const std::string& name, const PipelineSchedule::Rows& rows) {
  return ScheduleCheck(name, rows).run();
}

}  // namespace shadowgraph
