// Says what the calls of a trace compute and move: each distinct one is made once on fake tensors, and captured.
#pragma once

#include <string>
#include <vector>

#include "profiler/device_trace/trace_calls.h"
#include "profiler/time/kernel_work.h"

namespace shadowgraph {

struct TracedWork {
  std::string op;  // "aten::add.Tensor"
  KernelWork work;
  bool free = false;    // it makes no kernel: a view
  std::string problem;  // why nothing is known of it; empty if something is
};

// By place in TracedCalls::distinct.
std::vector<TracedWork> traced_work(const TracedCalls& calls);

}  // namespace shadowgraph
