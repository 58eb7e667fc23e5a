#include "parallel/ranks/graph_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "parallel/ranks/usual_spec.h"
#include "profiler/program_costs.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

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

uint32_t MeetingGroups::number_of(const std::vector<uint32_t>& members, uint32_t place) {
  const auto [found, is_new] = numbers_.try_emplace({members, place}, static_cast<uint32_t>(groups_.size()));
  if (is_new) groups_.push_back(members);
  return found->second;
}

namespace {

class GraphProgramWriter {
 public:
  GraphProgramWriter(const RankGraph& rank, uint32_t index, const RankGraphsOptions& options, const StandIns& stand_ins,
                     MeetingGroups& groups)
      : graph_(*rank.graph),
        index_(index),
        stand_ins_(stand_ins),
        groups_(groups),
        costs_(graph_),
        spec_(given_or_usual_spec(options.spec, graph_)),
        time_(StepTime::of(costs_, spec_)),
        communication_(Communication::of(graph_, {.interconnect = options.interconnect})) {}

  GraphProgram write() {
    for (const NodeId n : costs_.nodes) {
      wait_for_operands(n);
      if (const Collective* collective = communication_.find(n)) {
        flush();
        communicate(n, *collective);
        continue;
      }
      const NodeTime& at = time_.of(n);
      if (at.kind == KernelClass::kFree) continue;
      if (computing_ == 0) first_ = n;
      computing_ += std::max(at.seconds, spec_.host_call);
    }
    flush();
    return std::move(result_);
  }

 private:
  uint32_t name_step(GraphProgram::Step step) {
    result_.steps.push_back(std::move(step));
    return static_cast<uint32_t>(result_.steps.size() - 1);
  }

  // Kernels since the last communication, as one step.
  void flush() {
    if (computing_ == 0) return;
    std::string name = module_path(graph_, first_);
    if (name.empty()) name = graph_.phase_name(graph_.node(first_).phase);
    result_.program.compute(computing_, name_step({.name = std::move(name), .cause = "", .computes = true}));
    computing_ = 0;
  }

  void wait_for(uint32_t step) {
    flush();
    result_.program.wait(step, result_.program.steps()[step].what);
  }
  void wait_for_operands(NodeId node) {
    const auto look = [&](ValueId v) {
      const StorageId s = graph_.value(v).storage;
      if (!s.valid() || pending_[s] == 0) return;
      const uint32_t step = pending_[s] - 1;
      pending_[s] = 0;
      wait_for(step);
    };
    graph_.for_each_input(node, look);
  }

  void communicate(NodeId node, const Collective& collective) {
    const ProcessGroupInfo& group = communication_.groups()[collective.group];
    const bool sends = collective.kind == CollectiveKind::kSend, receives = collective.kind == CollectiveKind::kReceive;
    const auto payload = static_cast<uint64_t>(collective.payload);
    const double seconds = collective.cost.seconds();
    GraphProgram::Step step{.name = std::string(to_string(collective.kind))};
    uint32_t number = 0;
    if (sends || receives) {
      const int64_t peer = peer_of(node, group, sends ? "dst" : "src");
      step.other = peer;
      step.sends = sends;
      step.cause = fmt::format("{} {} rank {}", step.name, sends ? "to" : "from", peer);
      const uint32_t other = stand_ins_.of(peer);
      // Ranks that do the same send while they receive: that takes its time and keeps none of them waiting for another.
      if (other == index_ && sends) return;
      const uint32_t what = name_step(std::move(step));
      number = other == index_
                   ? result_.program.collective(groups_.number_of({index_}, kAmongAlike), payload, seconds, what)
               : sends ? result_.program.send(other, payload, seconds, what)
                       : result_.program.receive(other, payload, seconds, what);
    } else {
      step.cause = fmt::format("{} of {}", step.name, group.size);
      const auto match = payload * kCollectiveKindCount + static_cast<uint64_t>(collective.kind);
      const uint32_t channel = channel_of(collective.group, group);
      number = result_.program.collective(channel, match, seconds, name_step(std::move(step)));
    }
    if (!collective.asynchronous) return wait_for(number);
    const auto hold = [&](ValueId v) {
      if (graph_.value(v).storage.valid()) pending_[graph_.value(v).storage] = number + 1;
    };
    graph_.for_each_output(node, hold);
    if (!sends) {
      // What is written in place; what is read alone may go on being read.
      const OperatorFacts& facts = graph_.facts(node);
      for (const uint16_t at : facts.written) graph_.for_each_value(graph_.arguments(node).subspan(at, 1), hold);
    }
  }

  int64_t peer_of(NodeId node, const ProcessGroupInfo& group, const char* name) const {
    const Argument* argument = graph_.find_argument(node, name);
    if (argument == nullptr || argument->kind != ArgumentKind::kInt) {
      throw Error("whom this communicates with is not known:\n  " + graph_.target(node).name());
    }
    const int64_t peer = argument->i;
    if (group.ranks.empty()) return peer;
    if (peer < 0 || peer >= static_cast<int64_t>(group.ranks.size())) {
      throw Error(fmt::format("{} names rank {} of a group of {}", graph_.target(node).name(), peer, group.size));
    }
    return group.ranks[static_cast<size_t>(peer)];
  }

  uint32_t channel_of(uint32_t number, const ProcessGroupInfo& group) {
    if (const auto found = channels_.find(number); found != channels_.end()) return found->second;
    std::vector<uint32_t> members;
    for (const int64_t rank : group.ranks) members.push_back(stand_ins_.of(rank));
    if (members.empty()) members.push_back(index_);
    std::ranges::sort(members);
    members.erase(std::unique(members.begin(), members.end()), members.end());
    const uint32_t channel = groups_.number_of(members, places_[members]++);
    channels_.emplace(number, channel);
    return channel;
  }

  static constexpr uint32_t kAmongAlike = 0xFFFFFFFFU;  // a group of its own
  const Graph& graph_;
  uint32_t index_;
  const StandIns& stand_ins_;
  MeetingGroups& groups_;
  const ProgramCosts costs_;
  const DeviceSpec spec_;
  const StepTime time_;
  const Communication communication_;
  GraphProgram result_;
  IdMap<StorageId, uint32_t> pending_{0};  // 1 + the step that is to be waited for
  std::map<uint32_t, uint32_t> channels_;  // by group of the graph
  std::map<std::vector<uint32_t>, uint32_t> places_;
  double computing_ = 0;
  NodeId first_;
};

}  // namespace

GraphProgram graph_program(const RankGraph& rank, uint32_t index, const RankGraphsOptions& options,
                           const StandIns& stand_ins, MeetingGroups& groups) {
  return GraphProgramWriter(rank, index, options, stand_ins, groups).write();
}

}  // namespace shadowgraph
