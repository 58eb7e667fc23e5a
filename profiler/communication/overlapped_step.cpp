#include "shadowgraph/profile/overlapped_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "profiler/stream_notes.h"
#include "profiler/time/stream_schedule.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kNoTask = StreamSchedule::kNone;

// Makes tasks of the nodes of a program: what each waits for. With `communicate` false the collectives take no time.
class StreamTasks {
 public:
  StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time, bool communicate)
      : graph_(graph),
        communication_(communication),
        time_(time),
        communicate_(communicate),
        made_by_(graph.storage_count(), Made{}) {
    host_call_ = time.calls() > 0 ? time.host() / static_cast<double>(time.calls()) : 0;
    last_of_group_.assign(communication.groups().size(), kNoTask);
    for (const NodeId node : graph.nodes()) add(node);
    schedule_.run(communicate ? communication.device_share() : 0);
  }

  const StreamSchedule& schedule() const { return schedule_; }
  // Calls f(node, task): that of a node which takes no time and waits for nothing is the last before it on its stream.
  template <class F>
  void for_each_node(F&& f) const {
    for (const auto& [node, task] : nodes_) f(node, task);
  }
  NodeId node_of(uint32_t task) const { return task == kNoTask ? NodeId() : node_of_[task]; }

 private:
  struct Made {
    uint32_t task = kNoTask;
    uint32_t stream = 0;
  };
  // Streams of groups come behind those of the program.
  static constexpr uint32_t kFirstGroup = 1U << 30;

  uint32_t& last_on(uint32_t stream) { return last_on_.try_emplace(stream, kNoTask).first->second; }

  uint32_t task(NodeId node, uint32_t stream, double seconds, bool is_collective) {
    uint32_t& last = last_on(stream);
    after_.push_back(last);
    last = schedule_.add({.issued = host_, .seconds = seconds, .is_collective = is_collective}, after_);
    node_of_.push_back(node);
    after_.clear();
    return last;
  }

  void add(NodeId node) {
    const StreamNotes notes = stream_notes(graph_, node);
    for (const uint32_t event : notes.waits) wait_for(event);
    if (const Collective* collective = communication_.find(node)) {
      communicate(node, *collective, notes.stream);
    } else {
      compute(node, notes.stream);
    }
    if (notes.event != 0) events_[notes.event] = last_on(notes.stream);
  }

  // An event whose node a pass has erased stands for all that was issued.
  void wait_for(uint32_t event) {
    if (const auto known = events_.find(event); known != events_.end()) {
      after_.push_back(known->second);
      return;
    }
    for (const auto& [stream, last] : last_on_) after_.push_back(last);
  }

  void communicate(NodeId node, const Collective& collective, uint32_t stream) {
    host_ += host_call_;
    const double seconds = communicate_ ? collective.cost.seconds() : 0;
    uint32_t& before = last_of_group_[collective.group];
    if (collective.asynchronous) {
      // What the current stream is to wait for, it waits for all the same.
      if (!after_.empty()) task(node, stream, 0, false);
      after_.push_back(last_on(stream));
      stream = kFirstGroup + collective.group;
    }
    after_.push_back(before);
    wait_for_inputs(node, stream);
    before = task(node, stream, seconds, true);
    makes(node, before, stream);
    nodes_.emplace_back(node, before);
  }

  void compute(NodeId node, uint32_t stream) {
    const NodeTime& at = time_.of(node);
    const bool runs = at.kind != KernelClass::kFree;
    const bool waits = graph_.target(node).name() == "_c10d_functional::wait_tensor";
    if (runs) host_ += host_call_;
    if (runs || waits) wait_for_inputs(node, stream);
    if (runs || !after_.empty()) {
      const uint32_t made = task(node, stream, runs ? at.seconds : 0, false);
      if (runs) makes(node, made, stream);
    }
    nodes_.emplace_back(node, last_on(stream));
  }

  // A stream does in order what it is given: other streams alone are waited for.
  void wait_for_inputs(NodeId node, uint32_t stream) {
    graph_.for_each_input(node, [&](ValueId value) {
      const Value& tensor = graph_.value(value);
      if (tensor.kind != ValueKind::kTensor || !tensor.storage.valid()) return;
      const Made& made = made_by_[tensor.storage.index];
      if (made.task != kNoTask && made.stream != stream) after_.push_back(made.task);
    });
  }

  void makes(NodeId node, uint32_t made, uint32_t stream) {
    const auto note = [&](ValueId value) {
      const Value& tensor = graph_.value(value);
      if (tensor.kind == ValueKind::kTensor && tensor.storage.valid()) made_by_[tensor.storage.index] = {made, stream};
    };
    graph_.for_each_output(node, note);
    const auto arguments = graph_.arguments(node);
    for (const uint16_t position : graph_.facts(node).written) {
      if (position < arguments.size()) graph_.for_each_value(arguments.subspan(position, 1), note);
    }
  }

  const Graph& graph_;
  const Communication& communication_;
  const StepTime& time_;
  const bool communicate_;
  StreamSchedule schedule_;
  std::vector<NodeId> node_of_;  // by task
  std::vector<std::pair<NodeId, uint32_t>> nodes_;
  std::vector<uint32_t> after_;                     // what the next task waits for
  std::unordered_map<uint32_t, uint32_t> last_on_;  // by stream
  std::vector<uint32_t> last_of_group_;
  std::unordered_map<uint32_t, uint32_t> events_;  // the last task before each
  std::vector<Made> made_by_;                      // by storage, the last task that wrote it
  double host_call_ = 0;
  double host_ = 0;  // when the host has issued the calls so far
};

std::vector<ExposureCause> causes_of(std::span<const Exposure> exposures, const Graph& graph,
                                     const Communication& communication) {
  std::vector<ExposureCause> causes;
  for (const Exposure& exposure : exposures) {
    const Collective& collective = *communication.find(exposure.collective);
    const PhaseId phase = graph.node(exposure.collective).phase;
    std::optional<PhaseId> waiter;
    if (exposure.waiter.valid()) waiter = graph.node(exposure.waiter).phase;
    const auto same = [&](const ExposureCause& cause) {
      return cause.kind == collective.kind && cause.group == collective.group && cause.phase == phase &&
             cause.waiter == waiter;
    };
    auto found = std::ranges::find_if(causes, same);
    if (found == causes.end()) {
      causes.push_back({.kind = collective.kind, .group = collective.group, .phase = phase, .waiter = waiter});
      found = causes.end() - 1;
    }
    ++found->waits;
    found->seconds += exposure.seconds;
  }
  std::ranges::stable_sort(causes, std::greater<>(), &ExposureCause::seconds);
  return causes;
}

}  // namespace

OverlappedStep OverlappedStep::of(const Graph& graph, const Communication& communication, const StepTime& time) {
  OverlappedStep result;
  result.compute_ = StreamTasks(graph, communication, time, false).schedule().seconds();
  const StreamTasks tasks(graph, communication, time, true);
  const StreamSchedule& schedule = tasks.schedule();
  tasks.for_each_node([&](NodeId node, uint32_t task) {
    if (task == kNoTask) return;
    result.start_[node] = tasks.node_of(task) == node ? schedule.start(task) : schedule.end(task);
    result.end_[node] = schedule.end(task);
  });
  for (const StreamSchedule::Wait& wait : schedule.waits()) {
    result.exposures_.push_back({tasks.node_of(wait.collective), tasks.node_of(wait.waiter), wait.seconds});
  }
  result.causes_ = causes_of(result.exposures_, graph, communication);
  result.seconds_ = schedule.seconds();
  result.slowed_ = schedule.slowed();
  result.waits_for_host_ = schedule.waits_for_host();
  result.communication_ = communication.total().seconds;
  result.at_least_ = result.compute_;
  for (uint32_t group = 0; group < communication.groups().size(); ++group) {
    result.at_least_ = std::max(result.at_least_, communication.of_group(group).seconds);
  }
  return result;
}

std::string to_string(const ExposureCause& cause, const Graph& graph, const Communication& communication) {
  const ProcessGroupInfo& group = communication.groups()[cause.group];
  std::string text =
      fmt::format("{} of {}, {}", to_string(cause.kind), group.axis.empty() ? "group " + group.name : group.axis,
                  graph.phase_name(cause.phase));
  if (!cause.waiter) return text + ", until the end";
  if (*cause.waiter != cause.phase) text += fmt::format(", until the {}", graph.phase_name(*cause.waiter));
  return text;
}

}  // namespace shadowgraph
