#include "parallel/ranks/rank_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "shadowgraph/error.h"

namespace shadowgraph {

class RankRun {
 public:
  RankRun(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
          const RankTimes::StepName& name)
      : ranks_(ranks), groups_(groups), name_(name), next_(ranks.size(), 0), clock_(ranks.size(), 0) {
    result_.times_.resize(ranks.size());
    result_.computing_.resize(ranks.size());
    endpoints_.resize(ranks.size());
    arrivals_.resize(ranks.size());
    next_waiter_.resize(ranks.size(), kNone);
    for (size_t r = 0; r < ranks.size(); ++r) {
      result_.times_[r].resize(ranks[r].steps().size());
      arrivals_[r].resize(ranks[r].steps().size());
    }
  }

  RankTimes run() {
    std::vector<uint32_t> runnable(ranks_.size());
    for (uint32_t r = 0; r < runnable.size(); ++r) runnable[r] = static_cast<uint32_t>(runnable.size()) - 1 - r;
    while (!runnable.empty()) {
      const uint32_t rank = runnable.back();
      runnable.pop_back();
      advance(rank, runnable);
    }
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (next_[r] < ranks_[r].steps().size()) report_deadlock();
      result_.seconds_ = std::max(result_.seconds_, clock_[r]);
    }
    for (const Channel& channel : channels_) {
      if (!channel.meetings.empty() && channel.meetings.back().missing > 0) report_deadlock();
      result_.seconds_ = std::max(result_.seconds_, channel.free_at);
    }
    result_.end_ = clock_;
    return std::move(result_);
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  struct Member {
    uint32_t rank = kNone, step = 0;
  };
  // One send with its receive, or one collective.
  struct Meeting {
    uint32_t missing = 0;
    uint64_t match = 0;
    double ready = 0, seconds = 0;
    Member latest;            // the last member to arrive; arrivals link to the earlier ones
    uint32_t waiter = kNone;  // head of the list of ranks that wait for its end
  };
  // Communications that run one after another: from one rank to another, or in a group.
  struct Channel {
    std::vector<Meeting> meetings;
    double free_at = 0;
  };
  // A rank's endpoint of a channel. Each rank has only a few.
  struct Endpoint {
    RankStep::Kind kind;
    uint32_t other;
    uint32_t channel;
    size_t next = 0;  // the meeting that it joins next
  };
  struct Arrival {
    uint32_t channel = 0;
    size_t meeting = 0;
    Member before;  // the previous member to arrive
  };

  std::string describe(uint32_t rank, size_t step) const {
    const RankStep& at = ranks_[rank].steps()[step];
    if (at.kind == RankStep::Kind::kWait && at.other < step) return "waiting for " + describe(rank, at.other);
    const std::string name = name_ ? name_(rank, at) : fmt::format("step {}", step);
    const char* with = at.kind == RankStep::Kind::kSend         ? "to rank"
                       : at.kind == RankStep::Kind::kReceive    ? "from rank"
                       : at.kind == RankStep::Kind::kCollective ? "in group"
                                                                : nullptr;
    return with == nullptr ? name : fmt::format("{} {} {}", name, with, at.other);
  }
  [[noreturn]] void report_deadlock() const {
    std::string stuck;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (next_[r] == ranks_[r].steps().size()) continue;
      if (stuck.size() > 600) {
        stuck += "; and more";
        break;
      }
      stuck += fmt::format("{}rank {} {}", stuck.empty() ? "" : "; ", r, describe(r, next_[r]));
    }
    for (const Channel& channel : channels_) {
      if (!stuck.empty() || channel.meetings.empty() || channel.meetings.back().missing == 0) continue;
      const Member first = first_of(channel.meetings.back());
      stuck = fmt::format("rank {} {}, which no other rank has joined", first.rank, describe(first.rank, first.step));
    }
    throw Error("deadlock: " + stuck + kDeadlockHint);
  }

  void advance(uint32_t rank, std::vector<uint32_t>& runnable) {
    const auto steps = ranks_[rank].steps();
    auto& times = result_.times_[rank];
    for (size_t& at = next_[rank]; at < steps.size(); ++at) {
      const RankStep& step = steps[at];
      if (step.kind == RankStep::Kind::kCompute) {
        times[at] = {clock_[rank], clock_[rank] + step.seconds};
        clock_[rank] = times[at].end;
        result_.computing_[rank] += step.seconds;
      } else if (step.kind != RankStep::Kind::kWait) {
        arrive(rank, static_cast<uint32_t>(at), runnable);
      } else if (step.other >= at || steps[step.other].kind == RankStep::Kind::kWait) {
        throw Error(fmt::format("rank {}: step {} waits for step {}, which is not an earlier communication", rank, at,
                                step.other));
      } else if (steps[step.other].kind != RankStep::Kind::kCompute && !has_ended(rank, step.other)) {
        return;
      } else {
        times[at].begin = clock_[rank];
        clock_[rank] = times[at].end = std::max(clock_[rank], times[step.other].end);
      }
    }
  }

  bool has_ended(uint32_t rank, uint32_t step) {
    const Arrival& arrival = arrivals_[rank][step];
    Meeting& meeting = channels_[arrival.channel].meetings[arrival.meeting];
    if (meeting.missing == 0) return true;
    next_waiter_[rank] = meeting.waiter;
    meeting.waiter = rank;
    return false;
  }

  const Arrival& arrival_of(const Member& member) const { return arrivals_[member.rank][member.step]; }
  Member first_of(const Meeting& meeting) const {
    Member member = meeting.latest;
    while (arrival_of(member).before.rank != kNone) member = arrival_of(member).before;
    return member;
  }

  Endpoint& endpoint_of(uint32_t rank, const RankStep& step) {
    for (Endpoint& endpoint : endpoints_[rank]) {
      if (endpoint.kind == step.kind && endpoint.other == step.other) return endpoint;
    }
    const uint32_t channel = channel_of(rank, step);
    check_member(rank, step);
    return endpoints_[rank].emplace_back(Endpoint{.kind = step.kind, .other = step.other, .channel = channel});
  }

  void arrive(uint32_t rank, uint32_t at, std::vector<uint32_t>& runnable) {
    const RankStep& step = ranks_[rank].steps()[at];
    Endpoint& endpoint = endpoint_of(rank, step);
    Channel& channel = channels_[endpoint.channel];
    if (endpoint.next == channel.meetings.size()) {
      channel.meetings.push_back({.missing = members_of(step), .match = step.match});
    }
    Meeting& meeting = channel.meetings[endpoint.next];
    if (meeting.match != step.match) {
      const Member other = first_of(meeting);
      throw Error(fmt::format("mismatched communication of ranks {} and {}: rank {} is at {}, rank {} at {}", rank,
                              other.rank, rank, describe(rank, at), other.rank, describe(other.rank, other.step)));
    }
    arrivals_[rank][at] = {endpoint.channel, endpoint.next, meeting.latest};
    meeting.latest = {rank, at};
    ++endpoint.next;
    meeting.ready = std::max(meeting.ready, clock_[rank]);
    meeting.seconds = std::max(meeting.seconds, step.seconds);
    if (--meeting.missing > 0) return;
    const double begin = std::max(meeting.ready, channel.free_at);
    channel.free_at = begin + meeting.seconds;
    for (Member m = meeting.latest; m.rank != kNone; m = arrival_of(m).before) {
      result_.times_[m.rank][m.step] = {begin, channel.free_at};
    }
    // Resumes the waiting ranks in the order in which they started to wait.
    const size_t first = runnable.size();
    for (uint32_t r = meeting.waiter; r != kNone; r = next_waiter_[r]) runnable.push_back(r);
    std::reverse(runnable.begin() + static_cast<std::ptrdiff_t>(first), runnable.end());
    meeting.waiter = kNone;
  }

  uint32_t channel_of(uint32_t rank, const RankStep& step) {
    const bool collective = step.kind == RankStep::Kind::kCollective;
    const size_t bound = collective ? groups_.size() : ranks_.size();
    if (step.other >= bound) {
      throw Error(fmt::format("rank {0} uses {1} {2}, but the number of {1}s is {3}", rank,
                              collective ? "group" : "rank", step.other, bound));
    }
    const bool sends = step.kind == RankStep::Kind::kSend;
    const auto name =
        collective ? std::pair{kGroups, step.other} : std::pair{sends ? rank : step.other, sends ? step.other : rank};
    const auto [found, is_new] = numbers_.try_emplace(name, static_cast<uint32_t>(channels_.size()));
    if (is_new) channels_.emplace_back();
    return found->second;
  }
  void check_member(uint32_t rank, const RankStep& step) const {
    if (step.kind != RankStep::Kind::kCollective) {
      if (step.other == rank) throw Error(fmt::format("rank {} sends to itself", rank));
    } else if (std::ranges::find(groups_[step.other], rank) == groups_[step.other].end()) {
      throw Error(fmt::format("rank {} communicates in group {}, but is not a member", rank, step.other));
    }
  }
  uint32_t members_of(const RankStep& step) const {
    return step.kind == RankStep::Kind::kCollective ? static_cast<uint32_t>(groups_[step.other].size()) : 2;
  }

  static constexpr uint32_t kGroups = 0xFFFFFFFFU;
  std::span<const RankProgram> ranks_;
  std::span<const std::vector<uint32_t>> groups_;
  const RankTimes::StepName& name_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;  // of channels
  std::vector<Channel> channels_;
  std::vector<std::vector<Endpoint>> endpoints_;  // by rank
  std::vector<std::vector<Arrival>> arrivals_;    // by rank and step
  std::vector<uint32_t> next_waiter_;             // by rank
  RankTimes result_;
};

RankTimes RankTimes::of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
                        const StepName& name) {
  return RankRun(ranks, groups, name).run();
}

}  // namespace shadowgraph
