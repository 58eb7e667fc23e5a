// Timing, memory and captures shared by benchmarks.
#pragma once

#include <sys/wait.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <unistd.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::bench {

// Returns the least wall time of several runs in seconds.
template <class F>
double seconds(F&& run, int runs = 1) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

inline double microseconds(const std::function<void()>& run) { return seconds(run) * 1e6; }

inline long peak_resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::atol(line.c_str() + 6);
  }
  return 0;
}

// Captures a training step with AdamW of a model that was built in a fake mode.
inline CaptureResult capture_adamw_step(const models::BuiltModel& model) {
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &optimizer));
}

// The same for a built-in model on simulated CUDA.
inline Graph adamw_step(const std::string& name, const models::ModelOptions& options = {}) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  return capture_adamw_step(models::build(name, options)).graph;
}

// Runs this program in a process for each built-in model, with its name and maybe an argument. Returns an exit status.
template <class F>
int run_each_model(const char* program, F&& argument_for) {
  int failed = 0;
  for (const auto& info : models::available()) {
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", program, info.name.c_str(), argument_for(info), nullptr);
      _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    failed += status != 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace shadowgraph::bench
