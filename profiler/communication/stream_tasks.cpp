#include "profiler/communication/stream_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "profiler/program_costs.h"
#include "profiler/time/copy_engines.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/step_time.h"
#include "support/text.h"

namespace shadowgraph {

uint32_t StreamSchedule::add(const Task& task, std::span<const uint32_t> after) {
  for (const uint32_t earlier : after) {
    if (earlier != kNone) after_.push_back(earlier);
  }
  after_begin_.push_back(after_.size());
  tasks_.push_back(task);
  return static_cast<uint32_t>(tasks_.size() - 1);
}

uint32_t StreamSchedule::add_rendezvous(uint32_t parts) {
  parts_of_meeting_.push_back(parts);
  return static_cast<uint32_t>(parts_of_meeting_.size() - 1);
}

std::vector<uint32_t> StreamSchedule::stuck() const {
  std::vector<uint32_t> tasks;
  for (uint32_t task = 0; task < has_run_.size(); ++task) {
    if (has_run_[task] == 0) tasks.push_back(task);
  }
  return tasks;
}

// Event loop: advances to the next time at which a task ends or becomes ready.
class StreamSchedule::Run {
 public:
  Run(StreamSchedule& schedule, double share)
      : s_(schedule), share_(share), left_(count(), 0), ready_(count(), 0), held_by_(count(), kNone) {
    s_.start_.assign(count(), 0);
    s_.end_.assign(count(), 0);
    s_.has_run_.assign(count(), 0);
    uint32_t devices = 1;
    for (const Task& task : s_.tasks_) devices = std::max(devices, task.device + 1);
    s_.devices_.assign(devices, {});
    devices_.resize(devices);
    arrived_.resize(s_.parts_of_meeting_.size());
    came_ = s_.start_;
    find_successors();
    for (uint32_t task = 0; task < count(); ++task) {
      left_[task] = static_cast<uint32_t>(s_.after_begin_[task + 1] - s_.after_begin_[task]);
      if (left_[task] == 0) upcoming_.emplace(s_.tasks_[task].issued, task);
    }
  }

  void all() {
    while (true) {
      double now = HUGE_VAL;
      if (!upcoming_.empty()) now = std::min(now, upcoming_.top().first);
      if (!collectives_.empty()) now = std::min(now, collectives_.top().first);
      drop_old_kernel_ends();
      if (!kernel_ends_.empty()) now = std::min(now, kernel_ends_.top().first);
      if (now == HUGE_VAL) break;
      step(now);
    }
    for (uint32_t device = 0; device < devices_.size(); ++device) {
      if (devices_[device].last != kNone) explain(device, s_.devices_[device].end, kNone);
    }
  }

 private:
  using Moment = std::pair<double, uint32_t>;
  using Moments = std::priority_queue<Moment, std::vector<Moment>, std::greater<>>;

  struct Device {
    Moments kernels;  // by the time they became ready
    uint32_t kernel = kNone;
    double kernel_end = 0;
    double work = 0;   // remaining work of the kernel at `since`
    double since = 0;  // it has run at `rate` from this time on
    double rate = 1;
    bool slowed = false;
    uint32_t collectives = 0;  // in flight
    double idle_from = 0;
    uint32_t last = kNone;  // task that ended last
  };

  uint32_t count() const { return static_cast<uint32_t>(s_.tasks_.size()); }
  Device& device_of(uint32_t task) { return devices_[s_.tasks_[task].device]; }

  void find_successors() {
    next_begin_.assign(count() + size_t{1}, 0);
    for (const uint32_t earlier : s_.after_) ++next_begin_[earlier + size_t{1}];
    for (size_t i = 1; i < next_begin_.size(); ++i) next_begin_[i] += next_begin_[i - 1];
    next_.resize(s_.after_.size());
    std::vector<size_t> place(next_begin_.begin(), next_begin_.end() - 1);
    for (uint32_t task = 0; task < count(); ++task) {
      for (size_t i = s_.after_begin_[task]; i < s_.after_begin_[task + 1]; ++i) next_[place[s_.after_[i]]++] = task;
    }
  }

  // Returns false for an outdated end: the kernel's rate has changed since.
  bool is_current(const Moment& end) {
    const Device& device = device_of(end.second);
    return device.kernel == end.second && device.kernel_end == end.first;
  }
  void drop_old_kernel_ends() {
    while (!kernel_ends_.empty() && !is_current(kernel_ends_.top())) kernel_ends_.pop();
  }

  void step(double now) {
    changed_.clear();
    for (drop_old_kernel_ends(); !kernel_ends_.empty() && kernel_ends_.top().first <= now; drop_old_kernel_ends()) {
      const uint32_t task = kernel_ends_.top().second;
      kernel_ends_.pop();
      end_kernel(s_.tasks_[task].device, now);
    }
    while (!collectives_.empty() && collectives_.top().first <= now) {
      const uint32_t task = collectives_.top().second;
      collectives_.pop();
      if (!s_.tasks_[task].is_copy) change_rate(device_of(task), now, -1);
      finish(task, now);
    }
    while (!upcoming_.empty() && upcoming_.top().first <= now) {
      const uint32_t task = upcoming_.top().second;
      upcoming_.pop();
      arrive(task, now);
    }
    for (const uint32_t device : changed_) begin_kernel(device, now);
  }

  void end_kernel(uint32_t number, double now) {
    Device& device = devices_[number];
    DeviceSum& sum = s_.devices_[number];
    const double took = now - s_.start_[device.kernel];
    sum.computing += took;
    if (device.slowed) sum.slowed += took - s_.tasks_[device.kernel].seconds;
    device.idle_from = now;
    finish(std::exchange(device.kernel, kNone), now);
    changed_.push_back(number);
  }

  void begin_kernel(uint32_t number, double now) {
    Device& device = devices_[number];
    if (device.kernel != kNone || device.kernels.empty()) return;
    device.kernel = device.kernels.top().second;
    device.kernels.pop();
    explain(number, now, device.kernel);
    s_.start_[device.kernel] = now;
    device.work = s_.tasks_[device.kernel].seconds;
    device.slowed = false;
    go_on(device, now);
  }

  // A part of a rendezvous waits for the others.
  void arrive(uint32_t task, double now) {
    const uint32_t meeting = s_.tasks_[task].meeting;
    came_[task] = now;
    if (meeting == kNone) return begin(task, now, s_.tasks_[task].seconds);
    std::vector<uint32_t>& arrived = arrived_[meeting];
    arrived.push_back(task);
    if (arrived.size() < s_.parts_of_meeting_[meeting]) return;
    double seconds = 0;
    for (const uint32_t part : arrived) seconds = std::max(seconds, s_.tasks_[part].seconds);
    for (const uint32_t part : arrived) begin(part, now, seconds);
  }

  void begin(uint32_t task, double now, double seconds) {
    s_.start_[task] = now;
    if (seconds <= 0) {
      finish(task, now);
    } else if (s_.tasks_[task].is_copy) {
      collectives_.emplace(now + seconds, task);
    } else if (s_.tasks_[task].is_collective) {
      collectives_.emplace(now + seconds, task);
      change_rate(device_of(task), now, 1);
    } else {
      device_of(task).kernels.emplace(now, task);
      changed_.push_back(s_.tasks_[task].device);
    }
  }

  void finish(uint32_t task, double now) {
    s_.end_[task] = now;
    s_.has_run_[task] = 1;
    s_.seconds_ = std::max(s_.seconds_, now);
    DeviceSum& sum = s_.devices_[s_.tasks_[task].device];
    if (now >= sum.end) {
      sum.end = now;
      device_of(task).last = task;
    }
    for (size_t i = next_begin_[task]; i < next_begin_[task + size_t{1}]; ++i) {
      const uint32_t next = next_[i];
      if (held_by_[next] == kNone || now > ready_[next]) {
        ready_[next] = now;
        held_by_[next] = task;
      }
      if (--left_[next] == 0) upcoming_.emplace(std::max(now, s_.tasks_[next].issued), next);
    }
  }

  void change_rate(Device& device, double now, int more) {
    device.collectives += static_cast<uint32_t>(more);
    if (device.kernel == kNone || share_ == 0) return;
    device.work = std::max(0.0, device.work - (now - device.since) * device.rate);
    go_on(device, now);
  }
  // Continues the kernel at the rate that the collectives in flight allow.
  void go_on(Device& device, double now) {
    device.since = now;
    device.rate = std::pow(1 - share_, static_cast<double>(device.collectives));
    device.kernel_end = now + device.work / device.rate;
    device.slowed = device.slowed || device.rate < 1;
    kernel_ends_.emplace(device.kernel_end, device.kernel);
  }

  // Attributes the idle time since the device's last kernel. Time until the host has issued the waiting task counts as
  // host time, even if there were other delays; the rest is attributed by the chain of tasks that delayed the waiter.
  void explain(uint32_t number, double now, uint32_t waiter) {
    const Device& device = devices_[number];
    double& for_host = s_.devices_[number].waits_for_host;
    double begin = device.idle_from;
    if (waiter != kNone) begin = std::max(begin, std::min(now, s_.tasks_[waiter].issued));
    for_host += begin - device.idle_from;
    uint32_t held = waiter;
    double until = now;
    while (until > begin) {
      const uint32_t by = held == kNone ? device.last : held_by_[held];
      const double done = by == kNone ? 0 : s_.end_[by];
      if (held != kNone && done < until) {
        const double from = std::max(done, begin);
        for_host += until - from;
        until = from;
        continue;
      }
      if (by == kNone) break;
      const Task& task = s_.tasks_[by];
      if (task.is_copy || (task.is_collective && (task.seconds > 0 || task.meeting != kNone))) {
        const double from = std::max(came_[by], begin);  // includes waiting for the other parts
        if (until > from && task.is_copy) for_host += until - from;
        if (until > from && !task.is_copy) s_.waits_.push_back({by, waiter, until - from, number});
        until = from;
      } else if (task.seconds > 0) {
        break;  // a kernel, which ended when the idle time began
      }
      held = by;
    }
  }

  StreamSchedule& s_;
  const double share_;
  std::vector<uint32_t> next_;
  std::vector<size_t> next_begin_;
  std::vector<uint32_t> left_;  // number of unfinished dependencies
  std::vector<double> ready_;   // end of the latest finished dependency
  std::vector<uint32_t> held_by_;
  std::vector<double> came_;                    // time at which a task was ready to start
  std::vector<std::vector<uint32_t>> arrived_;  // by rendezvous
  std::vector<Device> devices_;
  Moments upcoming_, collectives_, kernel_ends_;  // by ready time, end, end; copies are among the collectives
  std::vector<uint32_t> changed_;                 // devices that may start a kernel now
};

void StreamSchedule::run(double share) {
  waits_.clear();
  seconds_ = 0;
  Run(*this, share).all();
}

namespace {

// Overhead of each additional kernel.
constexpr double kBeginsAndEnds = 2e-6;

// Runs a whole program. If `communicate` is false, its collectives take no time.
class WholeStep {
 public:
  WholeStep(const Graph& graph, const Communication& communication, const StepTime& time, bool communicate)
      : tasks_(graph, communication, time, schedule_,
               communicate ? StreamTaskOptions{} : StreamTaskOptions{.seconds = &none, .whole = true}) {
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

StreamTasks::StreamTasks(const Graph& graph, const Communication& communication, const StepTime& time,
                         StreamSchedule& schedule, StreamTaskOptions rules)
    : graph_(graph),
      communication_(communication),
      time_(time),
      schedule_(schedule),
      rules_(std::move(rules)),
      first_(schedule.tasks()),
      written_(graph) {
  host_call_ = time.calls() > 0 ? time.host() / static_cast<double>(time.calls()) : 0;
}

// Returns 1 for a node that is not split.
uint32_t StreamTasks::pieces_of(NodeId node) const {
  const std::string_view note = graph_.has_notes(node) ? graph_.note(node, "pieces") : std::string_view();
  if (note.empty() || rules_.whole) return 1;
  if (const uint32_t pieces = parse_number<uint32_t>(note).value_or(0); pieces > 0) return pieces;
  throw Error(
      fmt::format("invalid note \"pieces\" of {}: expected a number, not '{}'", graph_.target(node).name(), note));
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
  } else if (overlaps_kernels(graph_, node)) {
    copy(node, notes.stream);
  } else {
    compute(node, notes.stream);
  }
  if (notes.event != 0) events_[notes.event] = last_of(last_on_, notes.stream);
}

// If a pass has erased the node of an event, waits for everything issued so far.
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
  const uint32_t pieces = collective.asynchronous && seconds > 0 ? pieces_of(node) : 1;
  std::vector<uint32_t> made;  // tasks that produce the pieces
  if (pieces > 1) {
    const auto found = pieces_.find(graph_.value(graph_.arguments(node)[0].ref.value).storage);
    if (found != pieces_.end() && found->second.size() == pieces) made = found->second;
  }
  uint32_t& before = last_of(last_of_channel_, channel);
  if (collective.asynchronous) {
    // The current stream still has to wait for its dependencies.
    if (!after_.empty()) task(node, stream, {});
    if (made.empty()) after_.push_back(last_of(last_on_, stream));
    stream = kFirstChannel + channel;
  }
  after_.push_back(before);
  const StreamSchedule::Task whole{.seconds = seconds,
                                   .is_collective = true,
                                   .meeting = rules_.meeting ? rules_.meeting(collective) : StreamSchedule::kNone};
  if (made.empty()) wait_for_inputs(node, stream);
  if (pieces > 1) {
    communicate_in_pieces(node, pieces, stream, whole, made);
  } else {
    task(node, stream, whole);
  }
  before = last_of(last_on_, stream);
  makes(node, before, stream);
  nodes_.emplace_back(node, before);
}

// Sends each piece when it is produced; if nothing produces pieces, sends them one after another.
void StreamTasks::communicate_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, StreamSchedule::Task whole,
                                        const std::vector<uint32_t>& made) {
  whole.seconds /= pieces - 1;
  std::vector<uint32_t>& sent = pieces_[graph_.value(graph_.results(node)[0].ref.value).storage];
  sent.clear();
  for (uint32_t piece = 0; piece + 1 < pieces; ++piece) {
    if (!made.empty()) after_.push_back(made[piece]);
    sent.push_back(task(node, stream, whole));
    whole.meeting = StreamSchedule::kNone;
  }
}

void StreamTasks::compute(NodeId node, uint32_t stream) {
  const NodeTime& at = time_.of(node);
  const bool runs = at.kind != KernelClass::kFree;
  const std::string_view name = graph_.target(node).name();
  bool waits = name.starts_with("_c10d_functional::wait_tensor");
  // Readers of pieces wait for each piece, not for wait_tensor.
  if (name == "_c10d_functional::wait_tensor") {
    waits = !pieces_.contains(graph_.value(graph_.results(node)[0].ref.value).storage);
  }
  if (runs && at.bound == TimeBound::kHost) {  // the host issues later calls when it is done
    host_ += at.seconds;
    nodes_.emplace_back(node, last_of(last_on_, stream));
    return;
  }
  if (runs) host_ += host_call_;
  const uint32_t pieces = runs ? pieces_of(node) : 1;
  if (pieces > 1) {
    makes(node, compute_in_pieces(node, pieces, stream, at.seconds), stream);
  } else {
    if (runs || waits) wait_for_inputs(node, stream);
    if (runs || !after_.empty()) {
      // A copy over the host's link is in order with its stream, but leaves the device to kernels of others.
      const uint32_t made =
          task(node, stream, {.seconds = runs ? at.seconds : 0, .is_copy = runs && at.bound == TimeBound::kLink});
      if (runs) makes(node, made, stream);
    }
  }
  nodes_.emplace_back(node, last_of(last_on_, stream));
}

// A copy starts when the stream has finished what was issued before.
void StreamTasks::copy(NodeId node, uint32_t stream) {
  host_ += host_call_;
  if (!after_.empty()) task(node, stream, {});
  after_.push_back(last_of(last_on_, stream));
  stream = kFirstEngine + (graph_.value(graph_.results(node)[0].ref.value).device().is_cpu() ? 0 : 1);
  wait_for_inputs(node, stream);
  const uint32_t made = task(node, stream, {.seconds = time_.of(node).seconds, .is_copy = true});
  makes(node, made, stream);
  nodes_.emplace_back(node, made);
}

// The first gathered piece is local. Without gathered input, the pieces are outputs to be sent.
uint32_t StreamTasks::compute_in_pieces(NodeId node, uint32_t pieces, uint32_t stream, double seconds) {
  std::vector<uint32_t> gathered;
  graph_.for_each_input(node, [&](ValueId value) {
    const auto found = pieces_.find(graph_.value(value).storage);
    if (found != pieces_.end() && found->second.size() + 1 == pieces) {
      gathered = found->second;
    } else {
      wait_for_input(value, stream);
    }
  });
  std::vector<uint32_t> made;
  for (uint32_t piece = 0; piece < pieces; ++piece) {
    if (piece > 0) host_ += host_call_;
    if (piece > 0 && !gathered.empty()) after_.push_back(gathered[piece - 1]);
    made.push_back(task(node, stream, {.seconds = seconds / pieces + (piece > 0 ? kBeginsAndEnds : 0)}));
  }
  const uint32_t last = made.back();
  if (gathered.empty()) pieces_[graph_.value(graph_.results(node)[0].ref.value).storage] = std::move(made);
  return last;
}

// Tasks of one stream run in order, so only inputs from other streams need a dependency.
void StreamTasks::wait_for_inputs(NodeId node, uint32_t stream) {
  graph_.for_each_input(node, [&](ValueId value) { wait_for_input(value, stream); });
}

void StreamTasks::wait_for_input(ValueId value, uint32_t stream) {
  written_.for_each(value, [&](const Made& made) {
    if (made.stream != stream) after_.push_back(made.task);
  });
}

void StreamTasks::makes(NodeId node, uint32_t made, uint32_t stream) {
  for_each_written_value(graph_, node, [&](ValueId value) { written_.note(value, {made, stream}); });
}

OverlappedStep OverlappedStep::of(const Graph& graph, const Communication& communication, const StepTime& time) {
  OverlappedStep result;
  result.steps_ = time.steps();
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
  if (!cause.waiter) return text + ", until the end of the step";
  if (*cause.waiter != cause.phase) text += fmt::format(", until the {}", graph.phase_name(*cause.waiter));
  return text;
}

}  // namespace shadowgraph
