// Reads a trace of torch.profiler (Kineto): what the host called, with shapes, and what ran on the device.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/profile/collective_kind.h"

namespace shadowgraph {

// One input of a call: a tensor, a list of tensors, or anything else, of which the text is all there is.
struct TraceInput {
  std::string type;  // "float", "c10::BFloat16", "TensorList", "Scalar", "ScalarList", ""
  std::string text;  // "1", "[1, 1]", "True"; empty for tensors, None and what is not written
  std::vector<std::vector<int64_t>> sizes, strides;  // of tensors; strides are empty where the trace has none
  std::optional<c10::ScalarType> dtype;              // of a single tensor
  bool is_tensor() const { return dtype.has_value(); }
  bool is_tensors() const { return type == "TensorList"; }
};

// An interval of the host: an operator, or a part of autograd or of an optimizer. Microseconds, as in the file.
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

// What ran on the device: a kernel, a copy or a fill.
struct TraceKernel {
  std::string name;
  double start = 0, duration = 0;  // microseconds
  int64_t id = -1;                 // of the operator that issued it, -1 if the trace does not say
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
  int64_t comms_without_kernel = 0;  // collectives that the host issued, if no kernel of them was recorded

  // A .json or .json.gz file. Throws FileError, and ParseError for what is no such trace or has no shapes.
  static TraceEvents read_file(const std::string& path);
  static TraceEvents read(std::string_view text, const std::string& name);
};

// Says whether a text is a JSON document of a trace, or a packed one; for whoever takes several kinds of files.
bool looks_like_trace(const std::string& path);

}  // namespace shadowgraph
