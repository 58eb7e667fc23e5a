#include "cli/progress.h"

#include <fmt/format.h>

#include <chrono>

#include "cli/output.h"

namespace shadowgraph::cli {

Progress::Progress(std::string what) : what_(std::move(what)) {
  thread_ = std::thread([this] {
    const auto start = std::chrono::steady_clock::now();
    auto wait = std::chrono::seconds(1);
    std::unique_lock lock(mutex_);
    while (!done_signal_.wait_for(lock, wait, [this] { return done_; })) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      print_log("shadowgraph: {} ({:.0f} s)\n", what_, seconds);
      wait = std::chrono::seconds(5);
    }
  });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  done_signal_.notify_one();
  thread_.join();
}

}  // namespace shadowgraph::cli
