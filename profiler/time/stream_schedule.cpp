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

// Goes from one moment at which something ends or becomes ready to the next.
class StreamSchedule::Run {
 public:
  Run(StreamSchedule& schedule, double share)
      : s_(schedule), share_(share), left_(count(), 0), ready_(count(), 0), held_by_(count(), kNone) {
    s_.start_.assign(count(), 0);
    s_.end_.assign(count(), 0);
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
      if (kernel_ != kNone) now = std::min(now, kernel_end_);
      if (now == HUGE_VAL) break;
      step(now);
    }
    if (last_ != kNone) explain(s_.seconds_, kNone);
  }

 private:
  using Moment = std::pair<double, uint32_t>;
  using Moments = std::priority_queue<Moment, std::vector<Moment>, std::greater<>>;

  uint32_t count() const { return static_cast<uint32_t>(s_.tasks_.size()); }

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

  void step(double now) {
    if (kernel_ != kNone && kernel_end_ <= now) {
      if (slowed_) s_.slowed_ += now - s_.start_[kernel_] - s_.tasks_[kernel_].seconds;
      idle_from_ = now;
      finish(std::exchange(kernel_, kNone), now);
    }
    while (!collectives_.empty() && collectives_.top().first <= now) {
      const uint32_t task = collectives_.top().second;
      collectives_.pop();
      change_rate(now);
      finish(task, now);
    }
    while (!upcoming_.empty() && upcoming_.top().first <= now) {
      const uint32_t task = upcoming_.top().second;
      upcoming_.pop();
      begin(task, now);
    }
    if (kernel_ == kNone && !kernels_.empty()) {
      kernel_ = kernels_.top().second;
      kernels_.pop();
      explain(now, kernel_);
      s_.start_[kernel_] = now;
      work_ = s_.tasks_[kernel_].seconds;
      slowed_ = false;
      go_on(now);
    }
  }

  void begin(uint32_t task, double now) {
    const Task& what = s_.tasks_[task];
    s_.start_[task] = now;
    if (what.seconds <= 0) {
      finish(task, now);
    } else if (what.is_collective) {
      collectives_.emplace(now + what.seconds, task);
      change_rate(now);
    } else {
      kernels_.emplace(now, task);
    }
  }

  void finish(uint32_t task, double now) {
    s_.end_[task] = now;
    if (now >= s_.seconds_) {
      s_.seconds_ = now;
      last_ = task;
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

  // The number of collectives in flight has changed.
  void change_rate(double now) {
    if (kernel_ == kNone || share_ == 0) return;
    work_ = std::max(0.0, work_ - (now - since_) * rate_);
    go_on(now);
  }
  // The kernel runs from here on as the collectives in flight let it.
  void go_on(double now) {
    since_ = now;
    rate_ = std::pow(1 - share_, static_cast<double>(collectives_.size()));
    kernel_end_ = now + work_ / rate_;
    slowed_ = slowed_ || rate_ < 1;
  }

  // Says for what the device waited since the last kernel ended. Until the host has issued the waiter that is the host,
  // whatever else is late. From there on it goes back along what held up the waiter.
  void explain(double now, uint32_t waiter) {
    double begin = idle_from_;
    if (waiter != kNone) begin = std::max(begin, std::min(now, s_.tasks_[waiter].issued));
    s_.for_host_ += begin - idle_from_;
    uint32_t held = waiter;
    double until = now;
    while (until > begin) {
      const uint32_t by = held == kNone ? last_ : held_by_[held];
      const double done = by == kNone ? 0 : s_.end_[by];
      if (held != kNone && done < until) {
        const double from = std::max(done, begin);
        s_.for_host_ += until - from;
        until = from;
        continue;
      }
      if (by == kNone) break;
      if (s_.tasks_[by].is_collective && s_.tasks_[by].seconds > 0) {
        const double from = std::max(s_.start_[by], begin);
        if (until > from) s_.waits_.push_back({by, waiter, until - from});
        until = from;
      } else if (s_.tasks_[by].seconds > 0) {
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
  Moments upcoming_, collectives_, kernels_;  // by when they are ready, end, were ready
  uint32_t kernel_ = kNone;
  double kernel_end_ = 0;
  double work_ = 0;   // of the kernel, that was left at `since_`
  double since_ = 0;  // it has run at `rate_` since then
  double rate_ = 1;
  bool slowed_ = false;
  double idle_from_ = 0;
  uint32_t last_ = kNone;
};

void StreamSchedule::run(double share) {
  waits_.clear();
  seconds_ = for_host_ = slowed_ = 0;
  Run(*this, share).all();
}

}  // namespace shadowgraph
