// When the tasks of several streams run on one device.
//
// A task begins when the host has issued it, what its stream was given before is done, and so is all that it waits for.
// Kernels take turns: the device computes one at a time, first what was first ready. Collectives run beside kernels, and
// each of them takes its share of the device, so that kernels go on at (1 - share) of their speed. A task of no seconds
// is a mark that others wait for.
//
// While no kernel runs, the device waits, and for what is known: the chain of collectives that held up what comes next,
// and the host.
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
  };
  // The device waits for a collective, until `waiter` can begin; kNone: until all is done.
  struct Wait {
    uint32_t collective;
    uint32_t waiter;
    double seconds;
  };

  // Tasks come in the order in which they are issued. `after` are earlier tasks, kNone is nobody; among them is the one
  // before on the stream.
  uint32_t add(const Task& task, std::span<const uint32_t> after);
  // `share`: of the device, that a collective takes; 0 <= share < 1.
  void run(double share);

  double seconds() const { return seconds_; }
  double start(uint32_t task) const { return start_[task]; }
  double end(uint32_t task) const { return end_[task]; }
  const std::vector<Wait>& waits() const { return waits_; }
  double waits_for_host() const { return for_host_; }
  double slowed() const { return slowed_; }  // how much longer kernels took beside collectives

 private:
  class Run;
  std::vector<Task> tasks_;
  std::vector<uint32_t> after_;
  std::vector<size_t> after_begin_{0};
  std::vector<double> start_, end_;
  std::vector<Wait> waits_;
  double seconds_ = 0;
  double for_host_ = 0;
  double slowed_ = 0;
};

}  // namespace shadowgraph
