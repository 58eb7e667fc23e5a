#include "parallel/ranks/rank_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "parallel/ranks/usual_spec.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

constexpr uint64_t kTransfers = uint64_t{1}
                                << 62;  // channels of sends and receives, from the first member to the second
constexpr uint64_t kAmongAlike = uint64_t{1} << 61;

bool is_send(const Collective& collective) { return collective.kind == CollectiveKind::kSend; }
bool is_transfer(const Collective& collective) {
  return is_send(collective) || collective.kind == CollectiveKind::kReceive;
}

}  // namespace

StandIns::StandIns(std::span<const RankGraph> ranks) {
  for (const RankGraph& rank : ranks) {
    if (rank.graph == nullptr || rank.ranks.empty())
      throw Error("a rank that runs has a graph and the number of a rank");
    for (const int64_t number : rank.ranks) {
      const auto index = static_cast<uint32_t>(captured_.size());
      if (!by_rank_.emplace(number, index).second) throw Error(fmt::format("two graphs run for rank {}", number));
    }
    captured_.push_back(rank.ranks.front());
  }
}

uint32_t StandIns::of(int64_t rank) const {
  const auto found = by_rank_.find(rank);
  if (found == by_rank_.end())
    throw Error(fmt::format("no graph runs for rank {}, with which others communicate", rank));
  return found->second;
}

// ---- Meetings -------------------------------------------------------------------------------------------------------

uint32_t RankMeetings::number_of(const Channel& channel) {
  const auto [found, is_new] = numbers_.try_emplace(channel, static_cast<uint32_t>(lines_.size()));
  if (is_new) lines_.emplace_back();
  return found->second;
}

uint32_t RankMeetings::come(uint32_t channel, uint32_t rank, uint32_t parts, uint64_t match, const std::string& name) {
  Line& line = lines_[channel];
  size_t& next = line.next[rank];
  if (next == line.meetings.size()) line.meetings.push_back({schedule_.add_meeting(parts), match, rank, name});
  const Meeting& meeting = line.meetings[next++];
  if (meeting.match == match) return meeting.number;
  throw Error(
      fmt::format("ranks {} and {} do not meet: {} is at {}, {} at {}; all ranks of a group call the same "
                  "collectives in the same order, on as many bytes",
                  rank, meeting.first, rank, name, meeting.first, meeting.name));
}

// ---- One rank -------------------------------------------------------------------------------------------------------

RankTasks::RankTasks(const RankGraph& rank, uint32_t index, const RankGraphsOptions& options, const StandIns& stand_ins,
                     RankMeetings& meetings, StreamSchedule& schedule)
    : graph_(*rank.graph),
      index_(index),
      stand_ins_(stand_ins),
      meetings_(meetings),
      costs_(graph_),
      spec_(given_or_usual_spec(options.spec, graph_)),
      time_(StepTime::of(costs_, spec_)),
      communication_(Communication::of(graph_, {.interconnect = options.interconnect})) {
  StreamTaskRules rules{.device = index};
  rules.channel = [this](const Collective& collective) { return channel_of(collective); };
  rules.meeting = [this](const Collective& collective) { return meeting_of(collective); };
  tasks_ = std::make_unique<StreamTasks>(graph_, communication_, time_, schedule, std::move(rules));
  for (const NodeId node : costs_.nodes) tasks_->add(node);
}

std::string RankTasks::name_of(const Collective& collective) const { return std::string(to_string(collective.kind)); }

std::string RankTasks::name_of(uint32_t task) const {
  if (const Collective* at = collective(task)) return name_of(*at);
  const NodeId node = tasks_->node_of(task);
  std::string name = module_path(graph_, node);
  return name.empty() ? std::string(graph_.phase_name(graph_.node(node).phase)) : name;
}

std::string RankTasks::cause_of(uint32_t task) const {
  const Collective* at = collective(task);
  if (at == nullptr) return name_of(task);
  if (!is_transfer(*at)) return fmt::format("{} of {}", name_of(*at), communication_.groups()[at->group].size);
  return fmt::format("{} {} rank {}", name_of(*at), is_send(*at) ? "to" : "from", peer_of(*at));
}

int64_t RankTasks::other_end(uint32_t task) const {
  const Collective* at = collective(task);
  return at != nullptr && is_transfer(*at) ? peer_of(*at) : -1;
}
bool RankTasks::sends(uint32_t task) const {
  const Collective* at = collective(task);
  return at != nullptr && is_send(*at);
}

int64_t RankTasks::peer_of(const Collective& collective) const {
  const ProcessGroupInfo& group = communication_.groups()[collective.group];
  const Argument* argument = graph_.find_argument(collective.node, is_send(collective) ? "dst" : "src");
  if (argument == nullptr || argument->kind != ArgumentKind::kInt) {
    throw Error("whom this communicates with is not known:\n  " + graph_.target(collective.node).name());
  }
  const int64_t peer = argument->i;
  if (group.ranks.empty()) return peer;
  if (peer < 0 || peer >= static_cast<int64_t>(group.ranks.size())) {
    throw Error(
        fmt::format("{} names rank {} of a group of {}", graph_.target(collective.node).name(), peer, group.size));
  }
  return group.ranks[static_cast<size_t>(peer)];
}

// Those that run, each once.
std::vector<uint32_t> RankTasks::members_of(const Collective& collective) const {
  std::vector<uint32_t> members;
  for (const int64_t rank : communication_.groups()[collective.group].ranks) members.push_back(stand_ins_.of(rank));
  if (members.empty()) members.push_back(index_);
  std::ranges::sort(members);
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

uint32_t RankTasks::channel_of(const Collective& collective) {
  if (!is_transfer(collective)) {
    std::vector<uint32_t> members = members_of(collective);
    const auto [place, is_new] = places_.try_emplace(collective.group, 0);
    if (is_new) place->second = groups_of_[members]++;
    return meetings_.number_of({std::move(members), place->second});
  }
  const uint32_t other = stand_ins_.of(peer_of(collective));
  if (other == index_) return meetings_.number_of({{index_}, kAmongAlike + (is_send(collective) ? 1 : 0)});
  if (is_send(collective)) return meetings_.number_of({{index_, other}, kTransfers});
  return meetings_.number_of({{other, index_}, kTransfers});
}

// Ranks that do the same send while they receive: that takes its time and keeps none of them waiting for another.
uint32_t RankTasks::meeting_of(const Collective& collective) {
  const auto payload = static_cast<uint64_t>(collective.payload);
  if (is_transfer(collective)) {
    const int64_t peer = peer_of(collective);
    if (stand_ins_.of(peer) == index_) return StreamSchedule::kNone;
    return meetings_.come(channel_of(collective), index_, 2, payload,
                          fmt::format("{} {} rank {}", name_of(collective), is_send(collective) ? "to" : "from", peer));
  }
  const auto parts = static_cast<uint32_t>(members_of(collective).size());
  if (parts < 2) return StreamSchedule::kNone;
  const auto match = payload * kCollectiveKindCount + static_cast<uint64_t>(collective.kind);
  return meetings_.come(
      channel_of(collective), index_, parts, match,
      fmt::format("{} in group {}", name_of(collective), communication_.groups()[collective.group].name));
}

}  // namespace shadowgraph
