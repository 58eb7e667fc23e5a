// When the tasks of several streams run on one device, or on several that meet.
//
// A task begins when the host has issued it, what its stream was given before is done, and so is all that it waits for.
// Kernels take turns: the device computes one at a time, first what was first ready. Collectives run beside kernels, and
// each of them takes its share of the device, so that kernels go on at (1 - share) of their speed. Copies of engines run
// beside both, and take nothing. A task of no seconds is a mark that others wait for.
//
// A task may be one device's part of a meeting: a collective, or a send with its receive. The parts begin together, when
// all of them could, and last as long as the longest.
//
// While no kernel runs, the device waits, and for what is known. It is the chain of collectives that held up what comes
// next, or the host, its copies included.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shadowgraph {

class StreamSchedule {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFU;

  struct Task {
    double issued = 0;  // by the host; seconds from the beginning, as all here
    double seconds = 0;
    bool is_collective = false;
    bool is_copy = false;  // of an engine
    uint32_t device = 0;
    uint32_t meeting = kNone;  // of add_meeting()
  };
  // The device waits for a collective, until `waiter` can begin; kNone: until all its tasks are done.
  struct Wait {
    uint32_t collective;
    uint32_t waiter;
    double seconds;
    uint32_t device = 0;
  };

  // Tasks come in the order in which they are issued. `after` are earlier tasks, kNone is nobody; among them is the one
  // before on the stream.
  uint32_t add(const Task& task, std::span<const uint32_t> after);
  uint32_t add_meeting(uint32_t parts);
  const Task& task(uint32_t number) const { return tasks_[number]; }
  uint32_t tasks() const { return static_cast<uint32_t>(tasks_.size()); }
  // `share`: of the device, that a collective takes; 0 <= share < 1.
  void run(double share);

  double seconds() const { return seconds_; }
  // Tasks that never ran: they, or what they wait for, are parts of meetings to which not all come.
  std::vector<uint32_t> stuck() const;
  double start(uint32_t task) const { return start_[task]; }
  double end(uint32_t task) const { return end_[task]; }
  const std::vector<Wait>& waits() const { return waits_; }
  struct DeviceSum {
    double computing = 0;  // kernels, as slow as they were
    double slowed = 0;     // how much longer kernels took beside collectives
    double waits_for_host = 0;
    double end = 0;  // of its last task
  };
  const DeviceSum& device(uint32_t device) const { return devices_[device]; }
  double waits_for_host() const { return devices_.empty() ? 0 : devices_[0].waits_for_host; }
  double slowed() const { return devices_.empty() ? 0 : devices_[0].slowed; }

 private:
  class Run;
  std::vector<Task> tasks_;
  std::vector<uint32_t> after_;
  std::vector<size_t> after_begin_{0};
  std::vector<double> start_, end_;
  std::vector<uint32_t> parts_of_meeting_;
  std::vector<char> has_run_;
  std::vector<Wait> waits_;
  std::vector<DeviceSum> devices_;
  double seconds_ = 0;
};

}  // namespace shadowgraph
