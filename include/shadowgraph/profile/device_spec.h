// What kind of kernel a call runs, as far as its speed is concerned.
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
  kDepthwiseConvolution,  // a group a channel
  kDepthwiseConvolutionBackward,
  kAttention,
  kAttentionBackward,
  kRecurrent,
  kNormalization,
  kSoftmax,
  kReduction,
  kPooling,
  kPointwise,
  kPointwiseInPlace,  // no memory is made for a result
  kTranscendental,    // pointwise, with exp, tanh, ...
  kRandom,
  kGather,
  kScatter,
  kCopy,
  kFill,
  kSort,
  kOptimizer,  // fused steps
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

// What single calls of operators were measured to take on a device, by size.
//
// A table is of one operator ("aten::gelu", "aten::add.Tensor") or of one class of kernels ("matmul"), and of one
// dtype. A call goes by the table of its operator, else by that of its class. A size that is in the table takes what
// was measured. For others, what the device's rates say is scaled by how much slower the sizes near them were. Within
// the table that is interpolated; beyond an end it is that end's.
//
//     OperatorTables tables = read_operator_csv("gemm.csv");
//     spec.tables.add(tables);

// A matrix product has m, n, k and batch: `batch` times (m x k) by (k x n). Anything else has `bytes` that it moves,
// and `flops` where it computes so much that its bytes do not say how long it takes.
struct MeasuredSize {
  int64_t batch = 0, m = 0, n = 0, k = 0;
  double bytes = 0;
  double flops = 0;
  double seconds = 0;  // 0 is none
  bool is_product() const { return m > 0; }
  friend bool operator==(const MeasuredSize&, const MeasuredSize&) = default;
};

struct OperatorTables {
  using BySize = std::vector<MeasuredSize>;  // all products, or all by bytes, or all by bytes and FLOPs; each size once
  std::map<std::string, std::map<c10::ScalarType, BySize>> by_name;

  bool empty() const { return by_name.empty(); }
  // Takes over what the other has; of a size that both have, what the other says.
  void add(const OperatorTables& other);
  friend bool operator==(const OperatorTables&, const OperatorTables&) = default;
};

// Reads lines of comma-separated values, after one with the columns' names, in any order:
//
//   - operator: an operator or a class; dtype: as torch calls it; seconds;
//   - m, n, k, and batch (1 if absent), for matrix products;
//   - bytes, and flops, for others.
//
// A size that is there several times takes the median. Throws ParseError, with file and line, and FileError.
OperatorTables read_operator_csv(const std::string& path);

// The figures of a device that its kernels' times follow from. Each has a source: a data sheet, or the machine it was
// measured on.
//
//     const DeviceSpec h100 = DeviceSpec::named("h100");

// Calls of about `work` (FLOPs, or bytes) do `rate` of them a second. Between two points the rate is interpolated in
// the logarithms; beyond the ends it is that of the last.
struct RatePoint {
  double work = 0;
  double rate = 0;
  friend bool operator==(const RatePoint&, const RatePoint&) = default;
};

struct ClassRates {
  double fixed = 0;                // seconds of a call that has nothing to do
  std::vector<RatePoint> compute;  // FLOPs by FLOP/s of float32; empty: what is computed takes no time
  std::vector<RatePoint> memory;   // bytes by B/s
  // How much faster than that a dtype computes. One that is not here: by its peak and float32's.
  std::map<c10::ScalarType, double> scale;
  friend bool operator==(const ClassRates&, const ClassRates&) = default;
};

// What a GPU's kernels reach of its peaks. The laws that they follow on every GPU are in profiler/time/kernel_work.h.
struct GpuFigures {
  int64_t multiprocessors = 0;
  double stream = 0;     // B/s that a large copy reaches
  double moved = 0.85;   // share of it that kernels reach which write new memory, and reductions
  double sustained = 1;  // share of the rate below that lasts under the power limit, for what computes
  double matmul = 0;     // shares of the peak that large calls reach
  double attention = 0;
  double attention_backward = 0;
  double tensor_float32 = 0;  // peak FLOP/s of float32 convolutions, which may compute in TF32
  friend bool operator==(const GpuFigures&, const GpuFigures&) = default;
};

// A device's share of the machine that it is in.
struct HostFigures {
  double link = 0;       // B/s of a copy between device and pinned memory, in one direction
  double bandwidth = 0;  // B/s of the host's own memory, where all devices use it at once; 0: unknown
  int64_t memory = 0;    // bytes; 0: unknown
  friend bool operator==(const HostFigures&, const HostFigures&) = default;
};

struct DeviceSpec {
  std::string name;   // "h100"
  std::string title;  // "NVIDIA H100 SXM5 80 GB"
  c10::DeviceType device = c10::kCUDA;
  std::string architecture;  // "sm_90", "gfx942": what libraries go by; empty: unknown
  std::string reported_as;   // words of the name that its driver reports, "rtx 4090 -laptop": -word is not in it
  std::string interconnect;  // name of the links that usually join such devices; empty: none are known
  int64_t memory = 0;        // bytes
  double bandwidth = 0;      // B/s of device memory
  std::map<c10::ScalarType, double> matmul;  // peak FLOP/s of matrix products; float32's is needed
  double vector = 0;                         // peak FLOP/s of everything else, float32
  double transcendental = 0;                 // evaluations a second
  // For device calls that the host issues one after another, while the device works on earlier ones. Zero: the caller
  // waits.
  double host_call = 0;  // seconds of the host for a call
  // A class that is not here goes by `gpu`, if there is one. Else it is taken for the class it is a case of: grouped
  // for depthwise, pointwise for in-place. Without that it goes by kOther, or by kMatmul if it computes.
  std::map<KernelClass, ClassRates> classes;
  std::optional<GpuFigures> gpu;
  std::optional<HostFigures> host;
  OperatorTables tables;                       // of measured calls, which come before the rates
  std::map<std::string, std::string> sources;  // by figure; "*" for all that are not named

  // "a100", "h100", "h200", "b200", "v100", "l4", "rtx4090", "mi300x", "cpu", ...: see names(). Throws Error.
  static DeviceSpec named(std::string_view name);
  static std::vector<std::string> names();
  // A name, or a file if there is one of that name. Machine::find() has defaults (shadowgraph/profile/communication.h).
  static DeviceSpec find(const std::string& name_or_file);
  // Where `shadowgraph calibrate` leaves this machine's, beside MeasuredCalls::default_file().
  static std::string calibration_file();
  // A file as `shadowgraph calibrate` writes and docs/time.md describes. Throws ParseError, FileError.
  static DeviceSpec read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // The rate of one class at some work: interpolated, or what a GPU's large calls reach.
  double compute_rate(KernelClass kind, double flops, c10::ScalarType dtype) const;
  // The most FLOP/s that a class can reach in a dtype: its scale counts, since a library may compute float32 in TF32.
  double peak(KernelClass kind, c10::ScalarType dtype) const;
  double memory_rate(KernelClass kind, double bytes) const;
  double fixed(KernelClass kind) const;  // seconds of a kernel that has nothing to do

 private:
  bool by_gpu(KernelClass kind) const { return gpu && !classes.contains(kind); }
  const ClassRates& rates(KernelClass kind) const;
  std::map<KernelClass, ClassRates>::const_iterator entry_of(KernelClass kind) const;
};

nlohmann::json to_json(const DeviceSpec& spec);
DeviceSpec device_spec_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

// This machine's rates, from a few kernels of each class at several sizes, in under a minute, with libtorch's threads,
// on an idle machine. Must not run in a fake mode (throws Error).

struct CalibrateOptions {
  double seconds = 50;  // no kernel begins after this
  std::function<void(const std::string& kernel)> progress = {};
};
DeviceSpec calibrate(const CalibrateOptions& options = {});

}  // namespace shadowgraph
