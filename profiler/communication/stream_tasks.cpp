#include "profiler/communication/stream_tasks.h"

#include <algorithm>

#include "profiler/stream_notes.h"
#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {

StreamTasks::StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time,
                         StreamSchedule& schedule, StreamTaskRules rules)
    : graph_(graph),
      communication_(communication),
      time_(time),
      schedule_(schedule),
      rules_(std::move(rules)),
      first_(schedule.tasks()),
      written_(graph) {
  host_call_ = time.calls() > 0 ? time.host() / static_cast<double>(time.calls()) : 0;
}

uint32_t StreamTasks::task(NodeId node, uint32_t stream, StreamSchedule::Task what) {
  uint32_t& last = last_of(last_on_, stream);
  after_.push_back(last);
  what.issued = host_;
  what.device = rules_.device;
  last = schedule_.add(what, after_);
  node_of_.push_back(node);
  after_.clear();
  return last;
}

void StreamTasks::add(NodeId node) {
  const StreamNotes notes = stream_notes(graph_, node);
  for (const uint32_t event : notes.waits) wait_for(event);
  if (const Collective* collective = communication_.find(node)) {
    communicate(node, *collective, notes.stream);
  } else {
    compute(node, notes.stream);
  }
  if (notes.event != 0) events_[notes.event] = last_of(last_on_, notes.stream);
}

// An event whose node a pass has erased stands for all that was issued.
void StreamTasks::wait_for(uint32_t event) {
  if (const auto known = events_.find(event); known != events_.end()) {
    after_.push_back(known->second);
  } else if (!rules_.is_part) {
    for (const auto& [stream, last] : last_on_) after_.push_back(last);
  }
}

void StreamTasks::communicate(NodeId node, const Collective& collective, uint32_t stream) {
  host_ += host_call_;
  const double seconds = rules_.seconds ? rules_.seconds(collective) : collective.cost.seconds();
  const uint32_t channel = rules_.channel ? rules_.channel(collective) : collective.group;
  uint32_t& before = last_of(last_of_channel_, channel);
  if (collective.asynchronous) {
    // What the current stream is to wait for, it waits for all the same.
    if (!after_.empty()) task(node, stream, {});
    after_.push_back(last_of(last_on_, stream));
    stream = kFirstChannel + channel;
  }
  after_.push_back(before);
  wait_for_inputs(node, stream);
  before = task(node, stream,
                {.seconds = seconds,
                 .is_collective = true,
                 .meeting = rules_.meeting ? rules_.meeting(collective) : StreamSchedule::kNone});
  makes(node, before, stream);
  nodes_.emplace_back(node, before);
}

void StreamTasks::compute(NodeId node, uint32_t stream) {
  const NodeTime& at = time_.of(node);
  const bool runs = at.kind != KernelClass::kFree;
  const bool waits = graph_.target(node).name().starts_with("_c10d_functional::wait_tensor");
  if (runs) host_ += host_call_;
  if (runs || waits) wait_for_inputs(node, stream);
  if (runs || !after_.empty()) {
    const uint32_t made = task(node, stream, {.seconds = runs ? at.seconds : 0});
    if (runs) makes(node, made, stream);
  }
  nodes_.emplace_back(node, last_of(last_on_, stream));
}

// A stream does in order what it is given: other streams alone are waited for.
void StreamTasks::wait_for_inputs(NodeId node, uint32_t stream) {
  graph_.for_each_input(node, [&](ValueId value) {
    written_.for_each(value, [&](const Made& made) {
      if (made.stream != stream) after_.push_back(made.task);
    });
  });
}

void StreamTasks::makes(NodeId node, uint32_t made, uint32_t stream) {
  const auto note = [&](ValueId value) { written_.note(value, {made, stream}); };
  graph_.for_each_output(node, note);
  const auto arguments = graph_.arguments(node);
  for (const uint16_t position : graph_.facts(node).written) {
    if (position < arguments.size()) graph_.for_each_value(arguments.subspan(position, 1), note);
  }
}

}  // namespace shadowgraph
