#include "support/threads.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace shadowgraph {
namespace {

TEST(ForEachParallel, DoesTheSameOnAnyNumberOfThreads) {
  for (const size_t threads : {0, 1, 2, 7}) {
    for (const size_t count : {0, 1, 2, 100}) {
      std::vector<size_t> squares(count);
      for_each_parallel(
          count, [&](size_t i) { squares[i] += i * i; }, threads);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(squares[i], i * i);
    }
  }
}

TEST(ForEachParallel, ThrowsWhatTheLeastIndexThrew) {
  for (const size_t threads : {0, 1, 2, 7}) {
    std::string message;
    try {
      for_each_parallel(
          50,
          [](size_t i) {
            if (i >= 20) throw std::runtime_error(std::to_string(i));
          },
          threads);
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "20") << threads;
  }
}

}  // namespace
}  // namespace shadowgraph
