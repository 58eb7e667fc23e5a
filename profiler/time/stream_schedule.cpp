#include "profiler/time/stream_schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace shadowgraph {

uint32_t StreamSchedule::add(const Task& task, std::span<const uint32_t> after) {
  for (const uint32_t earlier : after) {
    if (earlier != kNone) after_.push_back(earlier);
  }
  after_begin_.push_back(after_.size());
  tasks_.push_back(task);
  return static_cast<uint32_t>(tasks_.size() - 1);
}

uint32_t StreamSchedule::add_meeting(uint32_t parts) {
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

// Goes from one moment at which something ends or becomes ready to the next.
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
    Moments kernels;  // by when they were ready
    uint32_t kernel = kNone;
    double kernel_end = 0;
    double work = 0;   // of the kernel, that was left at `since`
    double since = 0;  // it has run at `rate` since then
    double rate = 1;
    bool slowed = false;
    uint32_t collectives = 0;  // in flight
    double idle_from = 0;
    uint32_t last = kNone;  // task that ended
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

  // A kernel whose rate has changed has another end.
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

  // A part of a meeting waits for the others.
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
  // The kernel runs from here on as the collectives in flight let it.
  void go_on(Device& device, double now) {
    device.since = now;
    device.rate = std::pow(1 - share_, static_cast<double>(device.collectives));
    device.kernel_end = now + device.work / device.rate;
    device.slowed = device.slowed || device.rate < 1;
    kernel_ends_.emplace(device.kernel_end, device.kernel);
  }

  // Says for what the device waited since its last kernel ended. Until the host has issued the waiter that is the host,
  // whatever else is late. From there on it goes back along what held up the waiter.
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
        const double from = std::max(came_[by], begin);  // waiting for the others included
        if (until > from && task.is_copy) for_host += until - from;
        if (until > from && !task.is_copy) s_.waits_.push_back({by, waiter, until - from, number});
        until = from;
      } else if (task.seconds > 0) {
        break;  // a kernel, which ended when the waiting began
      }
      held = by;
    }
  }

  StreamSchedule& s_;
  const double share_;
  std::vector<uint32_t> next_;
  std::vector<size_t> next_begin_;
  std::vector<uint32_t> left_;  // that a task waits for
  std::vector<double> ready_;   // when the latest of those that are done was
  std::vector<uint32_t> held_by_;
  std::vector<double> came_;                    // when a task could begin
  std::vector<std::vector<uint32_t>> arrived_;  // by meeting
  std::vector<Device> devices_;
  Moments upcoming_, collectives_, kernel_ends_;  // by when they are ready, end, end; copies among collectives
  std::vector<uint32_t> changed_;                 // devices where a kernel may begin now
};

void StreamSchedule::run(double share) {
  waits_.clear();
  seconds_ = 0;
  Run(*this, share).all();
}

}  // namespace shadowgraph
