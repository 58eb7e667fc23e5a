#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "parallel/ranks/how_to_meet.h"
#include "shadowgraph/error.h"
#include "shadowgraph/parallel/ranks.h"

namespace shadowgraph {

// Goes through all ranks' steps, each as far as it can.
class RankRun {
 public:
  RankRun(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
          const RankTimes::StepName& name)
      : ranks_(ranks), groups_(groups), name_(name), next_(ranks.size(), 0), clock_(ranks.size(), 0) {
    result_.times_.resize(ranks.size());
    result_.computing_.resize(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) result_.times_[r].resize(ranks[r].steps().size());
  }

  RankTimes run() {
    std::vector<uint32_t> awake(ranks_.size());
    for (uint32_t r = 0; r < awake.size(); ++r) awake[r] = static_cast<uint32_t>(awake.size()) - 1 - r;
    while (!awake.empty()) {
      const uint32_t rank = awake.back();
      awake.pop_back();
      advance(rank, awake);
    }
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (next_[r] < ranks_[r].steps().size()) refuse_stuck();
      result_.seconds_ = std::max(result_.seconds_, clock_[r]);
    }
    for (const Channel& channel : channels_) {
      if (!channel.meetings.empty() && channel.meetings.back().missing > 0) refuse_stuck();
      result_.seconds_ = std::max(result_.seconds_, channel.free_at);
    }
    result_.end_ = clock_;
    return std::move(result_);
  }

 private:
  struct Member {
    uint32_t rank, step;
  };
  // One send with its receive, or one collective.
  struct Meeting {
    uint32_t missing = 0;
    uint64_t match = 0;
    double ready = 0, seconds = 0;
    std::vector<Member> members;
    std::vector<uint32_t> sleepers;  // ranks that wait for its end
  };
  // What runs one after another: from one rank to another, or in a group.
  struct Channel {
    std::vector<Meeting> meetings;
    std::unordered_map<uint32_t, size_t> next;  // by rank: which meeting it comes to next
    double free_at = 0;
    size_t done = 0;
  };
  struct Place {
    uint32_t channel = 0;
    size_t meeting = 0;
  };

  std::string in_words(uint32_t rank, size_t step) const {
    const RankStep& at = ranks_[rank].steps()[step];
    if (at.kind == RankStep::Kind::kWait && at.other < step) return "waiting for " + in_words(rank, at.other);
    const std::string name = name_ ? name_(rank, at) : fmt::format("step {}", step);
    switch (at.kind) {
      case RankStep::Kind::kSend:
        return fmt::format("{} to rank {}", name, at.other);
      case RankStep::Kind::kReceive:
        return fmt::format("{} from rank {}", name, at.other);
      case RankStep::Kind::kCollective:
        return fmt::format("{} in group {}", name, at.other);
      default:
        return name;
    }
  }
  [[noreturn]] void refuse_stuck() const {
    std::string stuck;
    for (uint32_t r = 0; r < ranks_.size(); ++r) {
      if (next_[r] == ranks_[r].steps().size()) continue;
      if (stuck.size() > 600) {
        stuck += "; and more";
        break;
      }
      stuck += fmt::format("{}rank {} {}", stuck.empty() ? "" : "; ", r, in_words(r, next_[r]));
    }
    for (const Channel& channel : channels_) {
      if (!stuck.empty() || channel.meetings.empty() || channel.meetings.back().missing == 0) continue;
      const Member& first = channel.meetings.back().members.front();
      stuck = fmt::format("rank {} {}, to which nobody comes", first.rank, in_words(first.rank, first.step));
    }
    throw Error("these ranks wait for ever: " + stuck + kHowToMeet);
  }

  void advance(uint32_t rank, std::vector<uint32_t>& awake) {
    const auto steps = ranks_[rank].steps();
    auto& times = result_.times_[rank];
    for (size_t& at = next_[rank]; at < steps.size(); ++at) {
      const RankStep& step = steps[at];
      if (step.kind == RankStep::Kind::kCompute) {
        times[at] = {clock_[rank], clock_[rank] + step.seconds};
        clock_[rank] = times[at].end;
        result_.computing_[rank] += step.seconds;
      } else if (step.kind != RankStep::Kind::kWait) {
        arrive(rank, static_cast<uint32_t>(at), awake);
      } else if (step.other >= at || steps[step.other].kind == RankStep::Kind::kWait) {
        throw Error(fmt::format("rank {}: step {} waits for step {}, which is no communication before it", rank, at,
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
    const Place& place = places_.at(key(rank, step));
    Meeting& meeting = channels_[place.channel].meetings[place.meeting];
    if (meeting.missing == 0) return true;
    meeting.sleepers.push_back(rank);
    return false;
  }

  void arrive(uint32_t rank, uint32_t at, std::vector<uint32_t>& awake) {
    const RankStep& step = ranks_[rank].steps()[at];
    const uint32_t number = channel_of(rank, step);
    Channel& channel = channels_[number];
    const auto [place, is_first] = channel.next.try_emplace(rank, 0);
    if (is_first) check_member(rank, step);
    size_t& index = place->second;
    if (index == channel.meetings.size())
      channel.meetings.push_back({.missing = members_of(step), .match = step.match});
    Meeting& meeting = channel.meetings[index];
    if (meeting.match != step.match) {
      const Member& other = meeting.members.front();
      throw Error(fmt::format("ranks {} and {} do not meet: {} is at {}, {} at {}", rank, other.rank, rank,
                              in_words(rank, at), other.rank, in_words(other.rank, other.step)));
    }
    places_.emplace(key(rank, at), Place{number, index});
    ++index;
    meeting.members.push_back({rank, at});
    meeting.ready = std::max(meeting.ready, clock_[rank]);
    meeting.seconds = std::max(meeting.seconds, step.seconds);
    if (--meeting.missing > 0) return;
    const double begin = std::max(meeting.ready, channel.free_at);
    channel.free_at = begin + meeting.seconds;
    for (const Member& m : meeting.members) result_.times_[m.rank][m.step] = {begin, channel.free_at};
    awake.insert(awake.end(), meeting.sleepers.begin(), meeting.sleepers.end());
    meeting.sleepers.clear();
  }

  uint32_t channel_of(uint32_t rank, const RankStep& step) {
    const bool collective = step.kind == RankStep::Kind::kCollective;
    const size_t bound = collective ? groups_.size() : ranks_.size();
    if (step.other >= bound) {
      throw Error(fmt::format("rank {} names {} {} of {}", rank, collective ? "group" : "rank", step.other, bound));
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
      throw Error(fmt::format("rank {} is not in group {}, in which it communicates", rank, step.other));
    }
  }
  uint32_t members_of(const RankStep& step) const {
    return step.kind == RankStep::Kind::kCollective ? static_cast<uint32_t>(groups_[step.other].size()) : 2;
  }
  static uint64_t key(uint32_t rank, uint32_t step) { return uint64_t{rank} << 32 | step; }

  static constexpr uint32_t kGroups = 0xFFFFFFFFU;
  std::span<const RankProgram> ranks_;
  std::span<const std::vector<uint32_t>> groups_;
  const RankTimes::StepName& name_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;  // of channels
  std::vector<Channel> channels_;
  std::unordered_map<uint64_t, Place> places_;
  RankTimes result_;
};

RankTimes RankTimes::of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
                        const StepName& name) {
  return RankRun(ranks, groups, name).run();
}

}  // namespace shadowgraph
