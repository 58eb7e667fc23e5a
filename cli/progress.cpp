#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <unistd.h>
#include <vector>

#include "cli/output.h"

namespace shadowgraph::cli {
namespace {

struct Running {
  std::mutex mutex;
  std::condition_variable done;
  std::vector<const std::string*> operations;  // outermost first
};

Running& running() {
  static auto* instance = new Running;
  return *instance;
}

constexpr const char* kClearLine = "\r\033[K";

void show_while_running() {
  Running& all = running();
  const auto start = std::chrono::steady_clock::now();
  auto wait = std::chrono::seconds(2);
  std::unique_lock lock(all.mutex);
  while (!all.done.wait_for(lock, wait, [&] { return all.operations.empty(); })) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::string text = "shadowgraph: " + *all.operations.front();
    if (all.operations.size() > 1) text += ": " + *all.operations.back();
    const std::string time = fmt::format(" ({:.0f} s)", seconds);
    const size_t width = columns(stderr) - 1;
    text.resize(std::min(text.size(), width - std::min(width, time.size())));
    std::fputs((kClearLine + printable(text) + time).c_str(), stderr);
    std::fflush(stderr);
    wait = std::chrono::seconds(1);
  }
  if (wait < std::chrono::seconds(2)) std::fputs(kClearLine, stderr);
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (::isatty(STDERR_FILENO) == 0) return;
  const std::lock_guard lock(running().mutex);
  running().operations.push_back(&what_);
  if (running().operations.size() == 1) thread_ = std::thread(show_while_running);
}

Progress::~Progress() {
  {
    const std::lock_guard lock(running().mutex);
    std::erase(running().operations, &what_);
  }
  if (!thread_.joinable()) return;
  running().done.notify_one();
  thread_.join();
}

}  // namespace shadowgraph::cli
