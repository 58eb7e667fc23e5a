// Picks the calls of a trace that a graph would have: operators that do not run as others. Each has the seconds of its
// kernels, or on a CPU its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiler/device_trace/trace_events.h"

namespace shadowgraph {

struct TracedCall {
  uint32_t distinct = 0;  // in TracedCalls::distinct
  double start = 0;       // of the host, seconds, as all here
  double seconds = 0;     // of its kernels; on a CPU, its own
  int64_t kernels = 0;
  bool issues_next = false;  // a call of the same thread follows, `until_next` after this one began
  double until_next = 0;
};

// Calls that are the same as far as the trace tells.
struct DistinctCall {
  uint32_t op = 0;  // one of them, in TraceEvents::ops
  c10::ScalarType list_dtype = c10::kFloat;
};

// Time of the device that belongs to no operator of PyTorch, or of the CPU in operators that are not known here.
struct OtherTime {
  int64_t calls = 0;
  double seconds = 0;
};

struct TracedCollective {
  TraceCollective what;
  double start = 0;
  double seconds = 0;
};

struct TracedCalls {
  TraceEvents events;
  bool on_device = false;         // kernels were recorded; otherwise the calls are a CPU's
  int64_t steps = 1;              // "ProfilerStep#3" annotations, 1 without any
  std::vector<TracedCall> calls;  // by thread, in order
  std::vector<DistinctCall> distinct;
  std::vector<TracedCollective> collectives;
  std::map<std::string, OtherTime> other;  // by name
  double span = 0;                         // from the first call or kernel to the end of the last, or of the steps
  double busy = 0;                         // of it, a kernel runs that is no collective's, or some call on the CPU

  static TracedCalls read_file(const std::string& path);
  static TracedCalls of(TraceEvents events);
};

}  // namespace shadowgraph
