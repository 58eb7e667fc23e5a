// Says how long a graph takes on a device: a roofline over what each call computes and moves. Figures of the device
// come from a file, or from rates measured on this machine.
//
//     const DeviceSpec h100 = DeviceSpec::named("h100");
//     const StepTime time = StepTime::of(graph, h100);
//     time.seconds(); time.of(node).seconds; time.flop_utilization();
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/measure.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Bytes that a call reads and writes, if every operand is read once and every result is written once.
//
// An operand counts once however often it is named, and only with the elements it has (an expanded tensor with those
// that are different). Views and calls that look at geometry alone move nothing; what a call overwrites it does not
// read. From a table from which rows are taken (embedding, index, gather), as much is read as there is in the result.
// Memory that a kernel reads twice, and scratch, are not in it.

struct NodeTraffic {
  int64_t read = 0;
  int64_t written = 0;
  int64_t total() const;  // saturates
  NodeTraffic& operator+=(const NodeTraffic& other);
  friend bool operator==(const NodeTraffic&, const NodeTraffic&) = default;
};

class Traffic {
 public:
  static Traffic of(const Graph& graph);
  const NodeTraffic& of(NodeId node) const { return by_node_[node]; }
  const NodeTraffic& of_phase(PhaseId phase) const { return by_phase_[phase]; }

 private:
  IdMap<NodeId, NodeTraffic> by_node_;
  IdMap<PhaseId, NodeTraffic> by_phase_;
};

// ---------------------------------------------------------------------------------------------------------------------
// What kind of kernel a call runs, as far as its speed is concerned.

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
std::string_view to_string(KernelClass kind);  // "matmul", "convolution_backward", ...
std::optional<KernelClass> parse_kernel_class(std::string_view word);
KernelClass kernel_class(const Graph& graph, NodeId node);

// ---------------------------------------------------------------------------------------------------------------------
// A device's figures. Each has a source: a data sheet, or the machine it was measured on.

// Calls of about `work` (FLOPs, or bytes) do `rate` of them a second. Between two points the rate is interpolated in the
// logarithms; beyond the ends it is that of the last.
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
  std::map<std::string, double> scale;
  friend bool operator==(const ClassRates&, const ClassRates&) = default;
};

struct DeviceSpec {
  std::string name;   // "h100"
  std::string title;  // "NVIDIA H100 SXM5 80 GB"
  c10::DeviceType device = c10::kCUDA;
  int64_t memory = 0;                    // bytes
  double bandwidth = 0;                  // B/s of device memory
  std::map<std::string, double> matmul;  // peak FLOP/s of matrix products by dtype: "float32", "bfloat16", ...
  double vector = 0;                     // peak FLOP/s of everything else, float32
  double transcendental = 0;             // evaluations a second
  // For device calls that the host issues one after another, while the device works on earlier ones. Zero: the caller
  // waits.
  double host_call = 0;  // seconds of the host for a call
  // A class that is not there goes by the one it is a case of (grouped for depthwise, pointwise for in-place). Without
  // that it goes by kOther, or by kMatmul if it computes.
  std::map<KernelClass, ClassRates> classes;
  std::map<std::string, std::string> sources;  // by figure; "*" for all that are not named

  // "a100", "h100", "h200", "b200", "v100", "l4", "rtx4090", "mi300x", "cpu", ...: see names(). Throws Error.
  static DeviceSpec named(std::string_view name);
  static std::vector<std::string> names();
  // A name, or a file if there is one of that name. Empty: what fits a device, "h100" for CUDA, for the CPU this machine's
  // calibration if there is one, else "cpu"; nothing for other kinds.
  static std::optional<DeviceSpec> find(const std::string& name_or_file, c10::DeviceType device);
  // Where `shadowgraph calibrate` leaves this machine's, beside MeasuredCalls::default_file().
  static std::string calibration_file();
  // A file as `shadowgraph calibrate` writes and docs/time.md describes. Throws ParseError, FileError.
  static DeviceSpec read_file(const std::string& path);
  void write_file(const std::string& path) const;
  // The rate of one class at some work; interpolated.
  double compute_rate(KernelClass kind, double flops, c10::ScalarType dtype) const;
  // The most FLOP/s that a class can reach in a dtype: its scale counts, since a library may compute float32 in TF32.
  double peak(KernelClass kind, c10::ScalarType dtype) const;
  double memory_rate(KernelClass kind, double bytes) const;
  const ClassRates& rates(KernelClass kind) const;

 private:
  std::map<KernelClass, ClassRates>::const_iterator entry_of(KernelClass kind) const;
};

nlohmann::json to_json(const DeviceSpec& spec);
DeviceSpec device_spec_from_json(const nlohmann::json& json, const std::string& name);  // throws ParseError

// ---------------------------------------------------------------------------------------------------------------------
// Seconds of every node and of the step.
//
// A kernel takes its class's fixed time and the longer of computing and moving. On a device with host_call > 0 kernels
// run one after another behind the host, which needs host_call for each call that is no view. A step whose kernels are
// shorter than that waits for the host. Elsewhere calls add up. Not counted are copies between devices, collectives
// (shadowgraph/profile/communication.h) and what the host does between calls.

enum class TimeBound : uint8_t { kNothing, kCompute, kMemory, kFixed, kMeasured };

struct NodeTime {
  double start = 0;   // of the kernel, from the beginning of the step; seconds, as all here
  double issued = 0;  // when the host begins with the call
  double seconds = 0;
  double compute = 0;
  double memory = 0;
  KernelClass kind = KernelClass::kFree;
  TimeBound bound = TimeBound::kNothing;
};

class StepTime {
 public:
  // `measured`, if given, has the seconds of calls on the CPU that were measured; asked if the spec is a CPU's.
  static StepTime of(const Graph& graph, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);
  static StepTime of(const ProgramCosts& costs, const DeviceSpec& spec, const MeasuredCalls* measured = nullptr);

  double seconds() const { return seconds_; }                       // of the step
  double busy() const { return busy_; }                             // of it, the device is at work
  double host() const { return host_; }                             // of the host's calls alone
  double waiting() const { return seconds_ - busy_; }               // the device waits for the host
  double seconds(PhaseId phase) const { return by_phase_[phase]; }  // of kernels
  double seconds(KernelClass kind) const { return by_class_[static_cast<size_t>(kind)]; }
  const NodeTime& of(NodeId node) const { return by_node_[node]; }
  // FLOPs of matrix products, as PyTorch counts them, by what the device could have done in the time: MFU.
  double flop_utilization() const { return utilization_; }
  const std::string& spec() const { return spec_; }
  int64_t calls() const { return calls_; }

 private:
  IdMap<NodeId, NodeTime> by_node_;
  IdMap<PhaseId, double> by_phase_;
  std::array<double, kKernelClassCount> by_class_{};
  double seconds_ = 0;
  double busy_ = 0;
  double host_ = 0;
  double utilization_ = 0;
  int64_t calls_ = 0;
  std::string spec_;
};

// ---------------------------------------------------------------------------------------------------------------------
// This machine's rates, from a few kernels of each class at several sizes, in under a minute, with libtorch's threads, on
// an idle machine. Must not run in a fake mode (throws Error).

struct CalibrateOptions {
  double seconds = 50;  // no kernel begins after this
  std::function<void(const std::string& kernel)> progress = {};
};
DeviceSpec calibrate(const CalibrateOptions& options = {});

}  // namespace shadowgraph
