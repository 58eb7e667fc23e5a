// Does things that know nothing of each other, on two threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
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

}  // namespace shadowgraph
