// Device specs: peak and achievable rates of devices, by class of kernel, and measured calls.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class KernelClass : uint8_t {
  kFree,  // no kernel: views, metadata
  kMatmul,
  kConvolution,
  kConvolutionBackward,
  kPointwiseConvolution,  // 1 x 1
  kPointwiseConvolutionBackward,
  kGroupedConvolution,
  kGroupedConvolutionBackward,
  kDepthwiseConvolution,  // one group per channel
  kDepthwiseConvolutionBackward,
  kAttention,
  kAttentionBackward,
  kRecurrent,
  kNormalization,
  kSoftmax,
  kReduction,
  kPooling,
  kPointwise,
  kPointwiseInPlace,  // no memory allocated for a result
  kTranscendental,    // pointwise, with exp, tanh, ...
  kRandom,
  kGather,
  kScatter,
  kCopy,
  kFill,
  kSort,
  kOptimizer,  // fused optimizer steps
  kOther,
};
constexpr int kKernelClassCount = static_cast<int>(KernelClass::kOther) + 1;
constexpr auto enum_names(KernelClass) {
  return names_in_order<KernelClass>(
      "free", "matmul", "convolution", "convolution_backward", "pointwise_convolution",
      "pointwise_convolution_backward", "grouped_convolution", "grouped_convolution_backward", "depthwise_convolution",
      "depthwise_convolution_backward", "attention", "attention_backward", "recurrent", "normalization", "softmax",
      "reduction", "pooling", "pointwise", "pointwise_in_place", "transcendental", "random", "gather", "scatter",
      "copy", "fill", "sort", "optimizer", "other");
}
KernelClass kernel_class(const Graph& graph, NodeId node);

// Measured times of operator calls on a device, by size.
//
// A table is for one operator ("aten::gelu", "aten::add.Tensor") or one class of kernels ("matmul"), and for one dtype;
// the operator's table takes precedence. A size in the table has the measured time. For other sizes, the time predicted
// from the device's rates is scaled by the ratio of measured to predicted time, interpolated between neighboring sizes,
// and constant beyond the ends of the table.

// Size and time of a measured call. A matrix product has m, n, k and batch: `batch` times (m x k) by (k x n). Other
// calls have `bytes` moved and, if they are compute-bound, `flops`.
struct MeasuredSize {
  int64_t batch = 0, m = 0, n = 0, k = 0;
  double bytes = 0;
  double flops = 0;
  double seconds = 0;  // 0: not measured
  bool is_product() const { return m > 0; }
  friend bool operator==(const MeasuredSize&, const MeasuredSize&) = default;
};

struct OperatorTables {
  using BySize = std::vector<MeasuredSize>;  // distinct sizes; all products, all bytes, or all bytes and FLOPs
  std::map<std::string, std::map<c10::ScalarType, BySize>> by_name;

  bool empty() const { return by_name.empty(); }
  // Merges another set of tables, which takes precedence for sizes in both.
  void add(const OperatorTables& other);
  friend bool operator==(const OperatorTables&, const OperatorTables&) = default;
};

// Reads measured times from CSV with a header line. Columns, in any order:
//
//   - operator: an operator or a class; dtype: as in torch; seconds;
//   - m, n, k, and optionally batch (default 1), for matrix products;
//   - bytes, and optionally flops, for other calls.
//
// Repeated sizes are replaced by their median. Throws ParseError with file and line, and FileError.
OperatorTables read_operator_csv(const std::string& path);

// Specs of a device for estimating its kernels' times. Every value has a source: a data sheet or a measured machine.

// Rate of calls with about `work` FLOPs or bytes, per second. Interpolated in log space; constant beyond the ends.
struct RatePoint {
  double work = 0;
  double rate = 0;
  friend bool operator==(const RatePoint&, const RatePoint&) = default;
};

struct ClassRates {
  double fixed = 0;                // seconds of a call without work
  std::vector<RatePoint> compute;  // FLOP/s by FLOPs, float32; empty: computing takes no time
  std::vector<RatePoint> memory;   // B/s by bytes
  // Speedup of a dtype over float32. Default: the ratio of peaks.
  std::map<c10::ScalarType, double> scale;
  friend bool operator==(const ClassRates&, const ClassRates&) = default;
};

// Achievable fractions of a GPU's peak rates. profiler/time/kernel_work.h has the model common to all GPUs.
struct GpuSpec {
  int64_t multiprocessors = 0;
  double stream = 0;     // B/s of a large copy
  double moved = 0.85;   // fraction of it achieved by reductions and kernels that write new memory
  double sustained = 1;  // fraction of the rate sustained under the power limit, for compute-bound kernels
  double matmul = 0;     // fraction of the peak achieved by large calls; likewise below
  double attention = 0;
  double attention_backward = 0;
  double tensor_float32 = 0;  // peak FLOP/s of float32 convolutions, which may use TF32
  friend bool operator==(const GpuSpec&, const GpuSpec&) = default;
};

// Host resources available to each device.
struct HostSpec {
  double link = 0;       // B/s of a copy between device and pinned memory, in one direction
  double bandwidth = 0;  // B/s of host memory per device if all devices use it; 0: unknown
  int64_t memory = 0;    // bytes; 0: unknown
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

struct DeviceSpec {
  std::string name;   // "h100"
  std::string title;  // "NVIDIA H100 SXM5 80 GB"
  c10::DeviceType device = c10::kCUDA;
  std::string architecture;  // "sm_90", "gfx942"; "": unknown
  std::string reported_as;   // words in the device name reported by the driver, "rtx 4090 -laptop" (-word: excluded)
  std::string interconnect;  // default interconnect of such devices; "": none
  int64_t memory = 0;        // bytes
  double bandwidth = 0;      // B/s of device memory
  std::map<c10::ScalarType, double> matmul;  // peak FLOP/s of matrix products; float32 is required
  double vector = 0;                         // peak FLOP/s of other operations, float32
  double transcendental = 0;                 // evaluations per second
  // Host time of a call in seconds, if calls are asynchronous to the device's. 0: calls are synchronous.
  double host_call = 0;
  // Rates by class. Defaults for missing classes: `gpu`, if set; otherwise the more general class (grouped for
  // depthwise, pointwise for in-place); otherwise kMatmul for compute-bound classes and kOther for the rest.
  std::map<KernelClass, ClassRates> classes;
  std::optional<GpuSpec> gpu;
  std::optional<HostSpec> host;
  OperatorTables tables;                       // measured calls, which take precedence over rates
  std::map<std::string, std::string> sources;  // by name of the value; "*" for all others

  // "a100", "h100", "h200", "b200", "v100", "l4", "rtx4090", "mi300x", "cpu", ...: see names(). Throws Error.
  static DeviceSpec named(std::string_view name);
  static std::vector<std::string> names();
  // Returns the spec in a file of that name if there is one, otherwise named(). Defaults: Machine::find().
  static DeviceSpec find(const std::string& name_or_file);
  // Returns the path of this machine's calibration by `shadowgraph calibrate`, next to MeasuredCalls::default_file().
  static std::string calibration_file();
  // Reads a file written by `shadowgraph calibrate`; format: docs/time.md. Throws ParseError, FileError.
  static DeviceSpec read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // Returns the FLOP/s of a class for a call of `flops`: interpolated, or that of a GPU's large calls.
  double compute_rate(KernelClass kind, double flops, c10::ScalarType dtype) const;
  // Returns the maximum FLOP/s of a class in a dtype, including its scale (a library may compute float32 in TF32).
  double peak(KernelClass kind, c10::ScalarType dtype) const;
  double memory_rate(KernelClass kind, double bytes) const;
  double fixed(KernelClass kind) const;  // seconds of a kernel without work

 private:
  bool by_gpu(KernelClass kind) const { return gpu && !classes.contains(kind); }
  const ClassRates& rates(KernelClass kind) const;
  std::map<KernelClass, ClassRates>::const_iterator entry_of(KernelClass kind) const;
};

nlohmann::json to_json(const DeviceSpec& spec);
DeviceSpec device_spec_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

// Measures this machine's rates with kernels of each class at several sizes, in less than a minute, with libtorch's
// number of threads. The machine should be idle. Throws Error under a FakeTensorMode.
struct CalibrateOptions {
  double seconds = 50;  // no kernel is started after this time
  std::function<void(const std::string& kernel)> progress = {};
};
DeviceSpec calibrate(const CalibrateOptions& options = {});

}  // namespace shadowgraph
