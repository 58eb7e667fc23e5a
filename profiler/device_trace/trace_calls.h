// Reads a torch.profiler (Kineto) trace: the host's calls with shapes, and the device's kernels.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/time/kernel_work.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {

// Returns Kineto's name of a dtype: "float", "c10::Half", "long int".
std::string kineto_type(c10::ScalarType dtype);

// One input of a call: a tensor, a list of tensors, or any other argument as text.
struct TraceInput {
  std::string type;  // "float", "c10::BFloat16", "TensorList", "Scalar", "ScalarList", ""
  std::string text;  // "1", "[1, 1]", "True"; empty for tensors, None and values not in the trace
  std::vector<std::vector<int64_t>> sizes, strides;  // of tensors; strides are empty if the trace has none
  std::optional<c10::ScalarType> dtype;              // of a single tensor
  bool is_tensor() const { return dtype.has_value(); }
  bool is_tensors() const { return type == "TensorList"; }
};

// A host interval: an operator, or a range of autograd or an optimizer. In microseconds, as in the file.
struct TraceOp {
  std::string name;
  std::string thread;
  double start = 0, duration = 0;
  int64_t id = -1;  // "External id"
  bool has_shapes = false;
  std::vector<TraceInput> inputs;
  double end() const { return start + duration; }
};

struct TraceCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  int64_t processes = 0;
  int64_t payload = 0;  // bytes
  std::string group;
};

// Work on the device: a kernel, copy or fill.
struct TraceKernel {
  std::string name;
  double start = 0, duration = 0;  // microseconds
  int64_t id = -1;                 // of the operator that launched it; -1 if unknown
  int64_t correlation = -1;        // of the launch
  int64_t device = 0, stream = 0;
  std::optional<TraceCollective> collective;
};

struct TraceLaunch {
  std::string thread;
  double start = 0;
  int64_t correlation = -1;
};

struct TraceStep {
  double start = 0, end = 0;
};

struct TraceEvents {
  std::string file;
  std::string device_title;          // "NVIDIA H100 80GB HBM3"; empty if the trace has no device
  int64_t device_memory = 0;         // bytes
  std::vector<TraceOp> ops;          // by thread, then by start, outer ones first
  std::vector<TraceKernel> kernels;  // by start
  std::vector<TraceLaunch> launches;
  std::vector<TraceStep> steps;      // "ProfilerStep#3"
  int64_t comms_without_kernel = 0;  // collectives issued by the host without a recorded kernel

  // Reads a .json or .json.gz file. Throws FileError, and ParseError if it is not such a trace or has no shapes.
  static TraceEvents read_file(const std::string& path);
};

// The calls of a trace that a graph would contain: leaf operators, not those that call others. Each has the time of its
// kernels, or its self time on a CPU.
struct TracedCall {
  uint32_t distinct = 0;  // in TracedCalls::distinct
  double start = 0;       // on the host; seconds, as all here
  double seconds = 0;     // of its kernels; its self time on a CPU
  int64_t kernels = 0;
  bool issues_next = false;  // another call follows on the thread, `until_next` after the start of this one
  double until_next = 0;
};

// Calls that are identical as far as the trace shows.
struct DistinctCall {
  uint32_t op = 0;  // one of them, in TraceEvents::ops
  c10::ScalarType list_dtype = c10::kFloat;
};

// Time of kernels that belong to no PyTorch operator, or on a CPU of operators not registered in this process.
struct OtherTime {
  int64_t calls = 0;
  double seconds = 0;
};

struct TracedCollective {
  TraceCollective what;
  double start = 0, seconds = 0;
};

struct TracedCalls {
  TraceEvents events;
  bool on_device = false;         // kernels were recorded; otherwise the calls ran on a CPU
  int64_t steps = 1;              // number of "ProfilerStep#3" annotations; 1 without any
  std::vector<TracedCall> calls;  // by thread, in order
  std::vector<DistinctCall> distinct;
  std::vector<TracedCollective> collectives;
  std::map<std::string, OtherTime> other;  // by name
  double span = 0;                         // from the first call or kernel to the end of the last, or of the steps
  double busy = 0;                         // part of it in which a compute kernel runs, or any call on a CPU

  static TracedCalls read_file(const std::string& path);
  static TracedCalls of(TraceEvents events);
};

struct TracedWork {
  std::string op;  // "aten::add.Tensor"
  KernelWork work;
  bool free = false;    // no kernel: a view
  std::string problem;  // reason that its work is unknown; empty if known
};

// Indexed as TracedCalls::distinct.
std::vector<TracedWork> traced_work(const TracedCalls& calls);

}  // namespace shadowgraph
