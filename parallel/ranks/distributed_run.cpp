// Simulates the captured graphs of several ranks together, one device each, synchronized by their communication.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "parallel/ranks/rank_times.h"
#include "parallel/stages/stage_seconds.h"
#include "profiler/communication/stream_tasks.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

// Maps each rank of the program to the captured rank that represents it.
class Representatives {
 public:
  // Throws Error.
  explicit Representatives(std::span<const RankGraph> ranks) {
    for (const RankGraph& rank : ranks) {
      if (rank.graph == nullptr || rank.ranks.empty())
        throw Error("every captured rank needs a graph and at least one rank number");
      for (const int64_t number : rank.ranks) {
        const auto index = static_cast<uint32_t>(captured_.size());
        if (!by_rank_.emplace(number, index).second) throw Error(fmt::format("rank {} has two graphs", number));
      }
      captured_.push_back(rank.ranks.front());
    }
  }

  // Index of the graph that represents a rank. Throws Error if there is none.
  uint32_t of(int64_t rank) const {
    const auto found = by_rank_.find(rank);
    if (found == by_rank_.end())
      throw Error(fmt::format("rank {}, with which other ranks communicate, has no graph", rank));
    return found->second;
  }

  int64_t captured(uint32_t index) const { return captured_[index]; }

 private:
  std::map<int64_t, uint32_t> by_rank_;
  std::vector<int64_t> captured_;
};

// Matches the n-th communication of a rank in a channel with the n-th of the other ranks.
class Rendezvous {
 public:
  // Captured ranks, and a number that distinguishes channels with the same ranks.
  using Channel = std::pair<std::vector<uint32_t>, uint64_t>;

  explicit Rendezvous(StreamSchedule& schedule) : schedule_(schedule) {}
  uint32_t number_of(const Channel& channel) {
    const auto [found, is_new] = numbers_.try_emplace(channel, static_cast<uint32_t>(lines_.size()));
    if (is_new) lines_.emplace_back();
    return found->second;
  }

  // Returns the meeting that a rank joins next. `match` must be equal for all members; `name` is used in messages.
  // Throws Error.
  uint32_t join(uint32_t channel, uint32_t rank, uint32_t parts, uint64_t match, const std::string& name) {
    Line& line = lines_[channel];
    size_t& next = line.next[rank];
    if (next == line.meetings.size()) line.meetings.push_back({schedule_.add_rendezvous(parts), match, rank, name});
    const Meeting& meeting = line.meetings[next++];
    if (meeting.match == match) return meeting.number;
    throw Error(
        fmt::format("mismatched communication of ranks {} and {}: rank {} is at {}, rank {} at {}; all ranks of a "
                    "group must call the same collectives in the same order with the same sizes",
                    rank, meeting.first, rank, name, meeting.first, meeting.name));
  }

 private:
  struct Meeting {
    uint32_t number = 0;
    uint64_t match = 0;
    uint32_t first = 0;  // the first member, and its call
    std::string name;
  };
  struct Line {
    std::vector<Meeting> meetings;
    std::map<uint32_t, size_t> next;  // by rank
  };
  StreamSchedule& schedule_;
  std::map<Channel, uint32_t> numbers_;
  std::vector<Line> lines_;
};

// Channels of sends and receives, from the first member to the second.
constexpr uint64_t kTransfers = uint64_t{1} << 62;
constexpr uint64_t kAmongAlike = uint64_t{1} << 61;

bool is_send(const Collective& collective) { return collective.kind == CollectiveKind::kSend; }
bool is_transfer(const Collective& collective) {
  return is_send(collective) || collective.kind == CollectiveKind::kReceive;
}

class RankTasks {
 public:
  // `rank`, `representatives`, `meetings` and the schedule outlive it.
  RankTasks(const RankGraph& rank, uint32_t index, const DistributedRunOptions& options,
            const Representatives& representatives, Rendezvous& meetings, StreamSchedule& schedule)
      : graph_(*rank.graph),
        index_(index),
        representatives_(representatives),
        meetings_(meetings),
        costs_(graph_),
        spec_(given_or_usual_spec(options.spec, graph_)),
        time_(StepTime::of(costs_, spec_)),
        communication_(Communication::of(graph_, {.interconnect = options.interconnect})) {
    StreamTaskOptions rules{.device = index};
    rules.channel = [this](const Collective& collective) { return channel_of(collective); };
    rules.meeting = [this](const Collective& collective) { return meeting_of(collective); };
    tasks_ = std::make_unique<StreamTasks>(graph_, communication_, time_, schedule, std::move(rules));
    for (const NodeId node : costs_.nodes) tasks_->add(node);
  }

  double device_share() const { return communication_.device_share(); }
  bool has(uint32_t task) const { return tasks_->node_of(task).valid(); }
  // "receive", "all_gather", or the module or phase of a kernel.
  std::string name_of(uint32_t task) const {
    if (const Collective* at = collective(task)) return name_of(*at);
    const NodeId node = tasks_->node_of(task);
    std::string name = module_path(graph_, node);
    return name.empty() ? std::string(graph_.phase_name(graph_.node(node).phase)) : name;
  }

  // "receive from rank 3", "all_reduce of 8"
  std::string cause_of(uint32_t task) const {
    const Collective* at = collective(task);
    if (at == nullptr) return name_of(task);
    if (!is_transfer(*at)) return fmt::format("{} of {}", name_of(*at), communication_.groups()[at->group].size);
    return transfer_name(*at);
  }

  // The peer of a send or receive; negative for other tasks.
  int64_t other_end(uint32_t task) const {
    const Collective* at = collective(task);
    return at != nullptr && is_transfer(*at) ? peer_of(*at) : -1;
  }

  bool sends(uint32_t task) const { return collective(task) != nullptr && is_send(*collective(task)); }

 private:
  const Collective* collective(uint32_t task) const { return communication_.find(tasks_->node_of(task)); }
  std::string name_of(const Collective& collective) const { return std::string(to_string(collective.kind)); }
  std::string transfer_name(const Collective& transfer) const {
    return fmt::format("{} {} rank {}", name_of(transfer), is_send(transfer) ? "to" : "from", peer_of(transfer));
  }
  uint32_t channel_of(const Collective& collective) {
    if (!is_transfer(collective)) {
      std::vector<uint32_t> members = members_of(collective);
      const auto [place, is_new] = places_.try_emplace(collective.group, 0);
      if (is_new) place->second = groups_of_[members]++;
      return meetings_.number_of({std::move(members), place->second});
    }
    const uint32_t other = representatives_.of(peer_of(collective));
    if (other == index_) return meetings_.number_of({{index_}, kAmongAlike + (is_send(collective) ? 1 : 0)});
    if (is_send(collective)) return meetings_.number_of({{index_, other}, kTransfers});
    return meetings_.number_of({{other, index_}, kTransfers});
  }

  // A transfer between ranks with the same representative takes its time, but does not wait for a peer.
  uint32_t meeting_of(const Collective& collective) {
    const auto payload = static_cast<uint64_t>(collective.payload);
    if (is_transfer(collective)) {
      if (representatives_.of(peer_of(collective)) == index_) return StreamSchedule::kNone;
      return meetings_.join(channel_of(collective), index_, 2, payload, transfer_name(collective));
    }
    const auto parts = static_cast<uint32_t>(members_of(collective).size());
    if (parts < 2) return StreamSchedule::kNone;
    const auto match = payload * kCollectiveKindCount + static_cast<uint64_t>(collective.kind);
    return meetings_.join(
        channel_of(collective), index_, parts, match,
        fmt::format("{} in group {}", name_of(collective), communication_.groups()[collective.group].name));
  }

  int64_t peer_of(const Collective& collective) const {
    const ProcessGroupInfo& group = communication_.groups()[collective.group];
    const Argument* argument = graph_.find_argument(collective.node, is_send(collective) ? "dst" : "src");
    if (argument == nullptr || argument->kind != ArgumentKind::kInt) {
      throw Error("the peer of this communication is unknown:\n  " + graph_.target(collective.node).name());
    }
    const int64_t peer = argument->i;
    if (group.ranks.empty()) return peer;
    if (peer < 0 || peer >= static_cast<int64_t>(group.ranks.size())) {
      throw Error(
          fmt::format("{} names rank {} of a group of {}", graph_.target(collective.node).name(), peer, group.size));
    }
    return group.ranks[static_cast<size_t>(peer)];
  }

  // Captured ranks of the group, without duplicates.
  std::vector<uint32_t> members_of(const Collective& collective) const {
    std::vector<uint32_t> members;
    for (const int64_t rank : communication_.groups()[collective.group].ranks)
      members.push_back(representatives_.of(rank));
    if (members.empty()) members.push_back(index_);
    std::ranges::sort(members);
    members.erase(std::unique(members.begin(), members.end()), members.end());
    return members;
  }

  const Graph& graph_;
  const uint32_t index_;
  const Representatives& representatives_;
  Rendezvous& meetings_;
  const ProgramCosts costs_;
  const DeviceSpec spec_;
  const StepTime time_;
  const Communication communication_;
  std::map<uint32_t, uint64_t> places_;  // number of a group among those with the same captured members
  std::map<std::vector<uint32_t>, uint64_t> groups_of_;
  std::unique_ptr<StreamTasks> tasks_;
};

[[noreturn]] void report_deadlock(const std::deque<RankTasks>& ranks, const Representatives& representatives,
                                  std::span<const uint32_t> stuck) {
  std::string text;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    const auto first = std::ranges::find_if(stuck, [&](uint32_t task) { return ranks[i].has(task); });
    if (first == stuck.end()) continue;
    if (text.size() > 600) {
      text += "; and more";
      break;
    }
    text += fmt::format("{}rank {} waiting for {}", text.empty() ? "" : "; ", representatives.captured(i),
                        ranks[i].cause_of(*first));
  }
  throw Error("deadlock: " + text + kDeadlockHint);
}

// Consecutive kernels of one module are merged into one event.
std::vector<DistributedRun::Event> events_of(const RankTasks& rank, const StreamSchedule& schedule) {
  std::vector<DistributedRun::Event> kernels, others;
  std::vector<uint32_t> tasks;
  for (uint32_t task = 0; task < schedule.tasks(); ++task) {
    if (rank.has(task) && (schedule.task(task).is_collective || schedule.task(task).seconds > 0)) tasks.push_back(task);
  }
  std::ranges::stable_sort(tasks, {}, [&](uint32_t task) { return schedule.start(task); });
  for (const uint32_t task : tasks) {
    DistributedRun::Event event{.name = rank.name_of(task),
                                .computes = !schedule.task(task).is_collective,
                                .begin = schedule.start(task),
                                .end = schedule.end(task),
                                .other = rank.other_end(task),
                                .sends = rank.sends(task)};
    if (event.other >= 0 && schedule.task(task).meeting != StreamSchedule::kNone) {
      event.pair = uint64_t{schedule.task(task).meeting} + 1;
    }
    if (event.computes && !kernels.empty() && kernels.back().name == event.name && kernels.back().end >= event.begin) {
      kernels.back().end = event.end;
    } else {
      (event.computes ? kernels : others).push_back(std::move(event));
    }
  }
  kernels.insert(kernels.end(), others.begin(), others.end());
  std::ranges::stable_sort(kernels, {}, &DistributedRun::Event::begin);
  return kernels;
}

}  // namespace

double DistributedRank::waiting() const {
  double seconds = 0;
  for (const auto& [cause, waited] : waits) seconds += waited;
  return seconds;
}

DistributedRun DistributedRun::of(std::span<const RankGraph> ranks, const DistributedRunOptions& options) {
  const Representatives representatives(ranks);
  StreamSchedule schedule;
  Rendezvous meetings(schedule);
  std::deque<RankTasks> tasks;  // not movable
  double share = 0;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    tasks.emplace_back(ranks[i], i, options, representatives, meetings, schedule);
    share = std::max(share, tasks.back().device_share());
  }
  schedule.run(share);
  if (const auto stuck = schedule.stuck(); !stuck.empty()) report_deadlock(tasks, representatives, stuck);
  DistributedRun run;
  run.seconds_ = schedule.seconds();
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    const StreamSchedule::DeviceSum& device = schedule.device(i);
    DistributedRank figures{.rank = representatives.captured(i), .computing = device.computing};
    run.events_.push_back(events_of(tasks[i], schedule));
    for (const Event& event : run.events_.back()) {
      if (event.computes) figures.end = std::max(figures.end, event.end);
    }
    if (device.waits_for_host > 0) figures.waits["the host"] = device.waits_for_host;
    if (const double left = run.seconds_ - device.end; left > 0) figures.waits["the end of the step"] = left;
    run.figures_.push_back(std::move(figures));
  }
  for (const StreamSchedule::Wait& wait : schedule.waits()) {
    run.figures_[wait.device].waits[tasks[wait.device].cause_of(wait.collective)] += wait.seconds;
  }
  return run;
}

std::string to_text(const DistributedRun& run) {
  std::string text = fmt::format("a step takes {}\n\n{:>6} {:>10} {:>10}  {}\n", human_seconds(run.seconds()), "RANK",
                                 "COMPUTES", "WAITS", "FOR");
  for (size_t i = 0; i < run.ranks(); ++i) {
    const DistributedRank& rank = run.rank(i);
    std::vector<std::pair<std::string, double>> causes(rank.waits.begin(), rank.waits.end());
    std::ranges::stable_sort(causes, std::ranges::greater(), &std::pair<std::string, double>::second);
    std::string most;
    constexpr size_t kShown = 3;
    for (size_t c = 0; c < std::min(kShown, causes.size()); ++c) {
      most += fmt::format("{}{} {}", c == 0 ? "" : ", ", causes[c].first, human_seconds(causes[c].second));
    }
    if (causes.size() > kShown) most += fmt::format(", and {} more", causes.size() - kShown);
    text += fmt::format("{:>6} {:>10} {:>10}  {}\n", rank.rank, human_seconds(rank.computing),
                        human_seconds(rank.waiting()), most);
  }
  return text;
}

nlohmann::json to_json(const DistributedRun& run) {
  nlohmann::json json{{"seconds", run.seconds()}, {"ranks", nlohmann::json::array()}};
  for (size_t i = 0; i < run.ranks(); ++i) {
    const DistributedRank& rank = run.rank(i);
    json["ranks"].push_back({{"rank", rank.rank},
                             {"computing_seconds", rank.computing},
                             {"waiting_seconds", rank.waiting()},
                             {"end_seconds", rank.end},
                             {"waits", rank.waits}});
  }
  return json;
}

}  // namespace shadowgraph
