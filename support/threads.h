// Runs independent tasks in parallel.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace shadowgraph {

// Calls each(0) to each(count - 1) on up to `threads` threads; 0: all cores. If calls throw, rethrows the exception of
// the smallest index and does not start further calls.
template <class Each>
void for_each_parallel(size_t count, const Each& each, size_t threads = 0) {
  if (threads == 0) threads = std::max(1U, std::thread::hardware_concurrency());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed_at = count;
  std::exception_ptr failed;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        each(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (i < failed_at) failed = std::current_exception();
        failed_at = std::min(failed_at, i);
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < std::min(count, threads); ++i) others.emplace_back(work);
    work();
  }
  if (failed) std::rethrow_exception(failed);
}

// Same as std::condition_variable::wait(lock, condition), whose symbol requires the runtime library of GCC 12 or later.
// Wheels also support that of GCC 11, which RHEL 9 has.

template <class Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition condition) {
  while (!changed.wait_for(lock, std::chrono::hours(1), condition)) {}
}

}  // namespace shadowgraph
