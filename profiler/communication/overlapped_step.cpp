#include "shadowgraph/profile/overlapped_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "profiler/communication/stream_tasks.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

// Runs all of a program. With `communicate` false its collectives take no time.
class WholeStep {
 public:
  WholeStep(const Graph& graph, const Communication& communication, const StepTime& time, bool communicate)
      : tasks_(graph, communication, time, schedule_,
               communicate ? StreamTaskRules{} : StreamTaskRules{.seconds = &none, .whole = true}) {
    for (const NodeId node : graph.nodes()) tasks_.add(node);
    schedule_.run(communicate ? communication.device_share() : 0);
  }
  const StreamSchedule& schedule() const { return schedule_; }
  const StreamTasks& tasks() const { return tasks_; }

 private:
  static double none(const Collective& /*collective*/) { return 0; }
  StreamSchedule schedule_;
  StreamTasks tasks_;
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
  result.compute_ = WholeStep(graph, communication, time, false).schedule().seconds();
  const WholeStep step(graph, communication, time, true);
  const StreamTasks& tasks = step.tasks();
  const StreamSchedule& schedule = step.schedule();
  tasks.for_each_node([&](NodeId node, uint32_t task) {
    if (task == StreamSchedule::kNone) return;
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
