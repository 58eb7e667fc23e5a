#include "parallel/ranks/rank_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "shadowgraph/error.h"

namespace shadowgraph {

// Goes through all ranks' steps, each as far as it can.
class RankRun {
 public:
  RankRun(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
          const RankTimes::StepName& name)
      : ranks_(ranks), groups_(groups), name_(name), next_(ranks.size(), 0), clock_(ranks.size(), 0) {
    result_.times_.resize(ranks.size());
    result_.computing_.resize(ranks.size());
    lines_.resize(ranks.size());
    places_.resize(ranks.size());
    next_sleeper_.resize(ranks.size(), kNobody);
    for (size_t r = 0; r < ranks.size(); ++r) {
      result_.times_[r].resize(ranks[r].steps().size());
      places_[r].resize(ranks[r].steps().size());
    }
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
  static constexpr uint32_t kNobody = 0xFFFFFFFFU;
  struct Member {
    uint32_t rank = kNobody, step = 0;
  };
  // One send with its receive, or one collective.
  struct Meeting {
    uint32_t missing = 0;
    uint64_t match = 0;
    double ready = 0, seconds = 0;
    Member latest;               // who came last; places lead to those before
    uint32_t sleeper = kNobody;  // a rank that waits for its end, and leads to the others
  };
  // What runs one after another: from one rank to another, or in a group.
  struct Channel {
    std::vector<Meeting> meetings;
    double free_at = 0;
  };
  // A rank's end of a channel. Ranks have few.
  struct Line {
    RankStep::Kind kind;
    uint32_t other;
    uint32_t channel;
    size_t next = 0;  // the meeting that it comes to
  };
  // Where a step met others.
  struct Place {
    uint32_t channel = 0;
    size_t meeting = 0;
    Member before;  // who came to the meeting before
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
      const Member first = first_of(channel.meetings.back());
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
    const Place& place = places_[rank][step];
    Meeting& meeting = channels_[place.channel].meetings[place.meeting];
    if (meeting.missing == 0) return true;
    next_sleeper_[rank] = meeting.sleeper;
    meeting.sleeper = rank;
    return false;
  }

  const Place& place_of(const Member& member) const { return places_[member.rank][member.step]; }
  Member first_of(const Meeting& meeting) const {
    Member member = meeting.latest;
    while (place_of(member).before.rank != kNobody) member = place_of(member).before;
    return member;
  }

  Line& line_of(uint32_t rank, const RankStep& step) {
    for (Line& line : lines_[rank]) {
      if (line.kind == step.kind && line.other == step.other) return line;
    }
    const uint32_t channel = channel_of(rank, step);
    check_member(rank, step);
    return lines_[rank].emplace_back(Line{.kind = step.kind, .other = step.other, .channel = channel});
  }

  void arrive(uint32_t rank, uint32_t at, std::vector<uint32_t>& awake) {
    const RankStep& step = ranks_[rank].steps()[at];
    Line& line = line_of(rank, step);
    Channel& channel = channels_[line.channel];
    if (line.next == channel.meetings.size()) {
      channel.meetings.push_back({.missing = members_of(step), .match = step.match});
    }
    Meeting& meeting = channel.meetings[line.next];
    if (meeting.match != step.match) {
      const Member other = first_of(meeting);
      throw Error(fmt::format("ranks {} and {} do not meet: {} is at {}, {} at {}", rank, other.rank, rank,
                              in_words(rank, at), other.rank, in_words(other.rank, other.step)));
    }
    places_[rank][at] = {line.channel, line.next, meeting.latest};
    meeting.latest = {rank, at};
    ++line.next;
    meeting.ready = std::max(meeting.ready, clock_[rank]);
    meeting.seconds = std::max(meeting.seconds, step.seconds);
    if (--meeting.missing > 0) return;
    const double begin = std::max(meeting.ready, channel.free_at);
    channel.free_at = begin + meeting.seconds;
    for (Member m = meeting.latest; m.rank != kNobody; m = place_of(m).before) {
      result_.times_[m.rank][m.step] = {begin, channel.free_at};
    }
    // In the order in which they fell asleep.
    const size_t first = awake.size();
    for (uint32_t r = meeting.sleeper; r != kNobody; r = next_sleeper_[r]) awake.push_back(r);
    std::reverse(awake.begin() + static_cast<std::ptrdiff_t>(first), awake.end());
    meeting.sleeper = kNobody;
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

  static constexpr uint32_t kGroups = 0xFFFFFFFFU;
  std::span<const RankProgram> ranks_;
  std::span<const std::vector<uint32_t>> groups_;
  const RankTimes::StepName& name_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> numbers_;  // of channels
  std::vector<Channel> channels_;
  std::vector<std::vector<Line>> lines_;    // by rank
  std::vector<std::vector<Place>> places_;  // by rank and step
  std::vector<uint32_t> next_sleeper_;      // by rank
  RankTimes result_;
};

RankTimes RankTimes::of(std::span<const RankProgram> ranks, std::span<const std::vector<uint32_t>> groups,
                        const StepName& name) {
  return RankRun(ranks, groups, name).run();
}

}  // namespace shadowgraph
