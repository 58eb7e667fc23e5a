// std::condition_variable's wait(lock, condition), which is a function of its own in the library of GCC 12 and later.
// Without it wheels are for systems with GCC 11's, too: RHEL 9 has it, and clusters have RHEL 9.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace shadowgraph {

template <class Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Condition condition) {
  while (!changed.wait_for(lock, std::chrono::hours(1), condition)) {}
}

}  // namespace shadowgraph
