// Shows on a terminal (stderr) what the tool is doing and for how long, if that takes longer than two seconds.
#pragma once

#include <string>
#include <thread>
#include <utility>

namespace shadowgraph::cli {

// Shows `what` for its lifetime. Operations nest, on one thread: the line shows the outermost and the innermost one, and
// the time of the outermost.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  std::string what_;
  std::thread thread_;  // of the outermost operation
};

// Shows `what` while `work` runs, and returns its result.
template <class F>
auto with_progress(std::string what, F&& work) {
  const Progress progress(std::move(what));
  return work();
}

}  // namespace shadowgraph::cli
