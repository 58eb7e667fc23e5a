// A prediction beside a trace that torch.profiler recorded of the real step: operator by operator, and what is off first.
//
//     const TraceComparison beside = compare_with_trace(profile(graph, {.spec = &h100}), "kineto.json.gz");
//     beside.most_off()->name; std::cout << to_text(beside);
//
// Calls of both are matched by operator, sizes and dtype. Where the trace has several steps ("ProfilerStep#3"), its
// figures are those of one of them on average. Only what a graph would have is compared: operators that are no composite,
// with the seconds of their kernels, or on a CPU their own.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/trace_calibration.h"

namespace SHADOWGRAPH_API shadowgraph {

struct ComparedTime {
  std::string name;                          // "aten::mm"; of a class, "matmul"; of collectives, "all_reduce of 8"
  std::string sizes;                         // "[512,1024] [1024,1024] bfloat16", of a single size; else empty
  std::string kind;                          // class of kernels
  double calls = 0, measured_calls = 0;      // of a step
  double seconds = 0, measured_seconds = 0;  // of a step
  double difference() const { return seconds - measured_seconds; }
};

struct TraceComparison {
  std::string prediction, measurement;  // what they are of
  int64_t steps = 1;                    // that the trace has
  // A step: all of it, kernels running, the device (or the CPU's operators) idle.
  ComparedTime step, busy, idle;
  // Greatest differences first.
  std::vector<ComparedTime> operators, classes, collectives;
  std::vector<ComparedTime> sizes;     // by operator, sizes and dtype
  std::vector<TraceLeftOut> left_out;  // of the trace, whole: kernels of no operator, operators that are not known here
  double matched_seconds = 0;          // of the trace: in calls of operators and sizes that both have

  // The operator, collective or idle time with the greatest difference; nullptr if nothing differs.
  const ComparedTime* most_off() const;
};

// `trace` is a .json or .json.gz. The profile must have times (throws Error). Throws as calibrate_from_trace does.
TraceComparison compare_with_trace(const Profile& prediction, const std::string& trace);
// The prediction is a trace, too: of `profile --export trace`, or of another device.
TraceComparison compare_traces(const std::string& prediction, const std::string& trace);
// Says whether a file is such a trace, by its first bytes.
bool is_trace_file(const std::string& path);

// `limit`: most lines of a list, 0 for all.
std::string to_text(const TraceComparison& comparison, size_t limit = 10);
nlohmann::json to_json(const TraceComparison& comparison);

}  // namespace shadowgraph
