// Does things that know nothing of each other, on two threads.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

namespace shadowgraph {

// Calls each(0) to each(count - 1). Throws what one of them threw.
template <class Each>
void on_two_threads(size_t count, const Each& each) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) each(i);
  };
  if (count < 2) return work();
  std::exception_ptr failed;
  {
    const std::jthread other([&] {
      try {
        work();
      } catch (...) {
        failed = std::current_exception();
      }
    });
    work();
  }
  if (failed) std::rethrow_exception(failed);
}

// std::condition_variable's wait(lock, condition), which is a function of its own in the library of GCC 12 and later.
// Without it wheels are for systems with GCC 11's, too: RHEL 9 has it, and clusters have RHEL 9.

template <class Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition condition) {
  while (!changed.wait_for(lock, std::chrono::hours(1), condition)) {}
}

}  // namespace shadowgraph
