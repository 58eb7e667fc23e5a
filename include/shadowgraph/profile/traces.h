// Export of profiles to other formats, and comparison with traces of torch.profiler.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"

namespace SHADOWGRAPH_API shadowgraph {

// Writes CSV with one line per node:
//
//   - node, phase, module, op, source, forward (the node that it differentiates);
//   - matmul_flops, elementwise_flops, transcendental, read_bytes, written_bytes, intensity (FLOPs per byte);
//   - allocated_bytes, freed_bytes, live_bytes (on the profile's device while the node runs), scratch_bytes, scratch
//     (its source), seconds (empty if the profile has no times);
//   - totals of the backward nodes of a forward node: backward_matmul_flops, backward_elementwise_flops,
//     backward_moved_bytes, backward_seconds;
//   - wire_bytes and communication_seconds (of collectives).
//
// Fields are quoted according to RFC 4180.
std::string nodes_csv(const Profile& profile);
// Writes CSV with one line per storage:
//
//   - storage, kind, device, bytes;
//   - born, first_use, last_forward_use, first_backward_use, last_use, freed: nodes; empty if there is none or it is
//     not freed;
//   - module, op and source of its producer, dtype, shape;
//   - kept_by, the reason it is kept: "parameter", "autograd, saved at 12" (the first forward node that saves it),
//     "output" or empty;
//   - at_peak: "yes" if live at the peak of the profile's device.
std::string storages_csv(const Profile& profile);

// Writes the Trace Event Format, with timestamps in microseconds. With times, there are rows for host calls and device
// kernels; without, every node takes one microsecond. With times of collectives, these have a row and all events are
// placed by OverlappedStep (shadowgraph/profile/step_time.h). Counters show live bytes and scratch.
std::string chrome_trace(const Profile& profile);

// Writes the format of torch.cuda.memory._dump_snapshot (pickle protocol 2): segments, blocks and events of the
// simulated caching allocator of the profile's device. Modules and sources are frames; each storage has one entry.
std::string memory_snapshot(const Profile& profile, const DeviceMemoryOptions& options = {});

// Writes the format of Google's Model Explorer, nested by module, with bytes, FLOPs and seconds as attributes.
nlohmann::json model_explorer(const Profile& profile);

// Calibration of a device spec from a trace that torch.profiler recorded with record_shapes=True.
//
// FLOPs and bytes of calls are computed from their shapes, by running each distinct call once on fake tensors. Times
// are those of kernels if the trace has kernels, otherwise of CPU calls.
//
// Peak rates are those of the device named in the trace if its specs are known (DeviceSpec::named), otherwise the
// maxima in the trace; see the spec's `sources`. Throws Error under a FakeTensorMode.

// Calls of an operator, or a kernel, that could not be used.
struct SkippedCalls {
  std::string op;
  std::string reason;
  int64_t calls = 0;
  double seconds = 0;
};

struct TraceCalibration {
  DeviceSpec spec;
  std::optional<Interconnect> links;  // std::nullopt if there are no collectives
  int64_t calls = 0;                  // measured calls
  int64_t sizes = 0;                  // distinct sizes in the table
  int64_t collectives = 0;
  double seconds = 0;                  // total time
  std::vector<SkippedCalls> left_out;  // by decreasing time
};

struct TraceCalibrationOptions {
  std::string device;  // name (DeviceSpec::named) or file of a spec with the peak rates; "": the device in the trace
};

// `path` is a .json or .json.gz file. Throws FileError; ParseError if it is not a trace, or has no shapes.
TraceCalibration calibrate_from_trace(const std::string& path, const TraceCalibrationOptions& options = {});

// Comparison of a prediction with a trace of the real step recorded by torch.profiler, by operator.
//
// Calls are matched by operator, sizes and dtype. If the trace has several steps ("ProfilerStep#3"), their mean is
// used. Non-composite operators are compared, by time of kernels or, on a CPU, self time.

struct ComparedTime {
  std::string name;                          // "aten::mm"; for a class "matmul"; for collectives "all_reduce of 8"
  std::string sizes;                         // "[512,1024] [1024,1024] bfloat16" for a single size; otherwise ""
  std::string kind;                          // class of kernels
  double calls = 0, measured_calls = 0;      // per step
  double seconds = 0, measured_seconds = 0;  // per step
  double difference() const { return seconds - measured_seconds; }
};

struct TraceComparison {
  std::string prediction, measurement;  // their names
  int64_t steps = 1;                    // number of steps in the trace
  // Time per step: total, with kernels running, and idle (of the device, or between operators on a CPU).
  ComparedTime step, busy, idle;
  // By decreasing difference.
  std::vector<ComparedTime> operators, classes, collectives;
  std::vector<ComparedTime> sizes;     // by operator, sizes and dtype
  std::vector<SkippedCalls> left_out;  // of the whole trace: kernels without operator, unknown operators
  double matched_seconds = 0;          // time in the trace of calls with operators and sizes in both

  // Returns the operator, collective or idle time with the largest difference; nullptr if there is none.
  const ComparedTime* most_off() const;
};

// `trace` is a .json or .json.gz file. Throws Error without times, and the errors of calibrate_from_trace.
TraceComparison compare_with_trace(const Profile& prediction, const std::string& trace);
// Compares two traces: `prediction` is from `profile --export trace`, or from another device.
TraceComparison compare_traces(const std::string& prediction, const std::string& trace);
// Returns whether a file is a trace, based on its first bytes.
bool is_trace_file(const std::string& path);

// `limit`: maximum length of each list, 0: unlimited.
std::string to_text(const TraceComparison& comparison, size_t limit = 10);
nlohmann::json to_json(const TraceComparison& comparison);

}  // namespace shadowgraph
