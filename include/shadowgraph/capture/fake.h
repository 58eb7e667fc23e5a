// Fake tensors: run programs for shapes, dtypes, strides, aliasing and devices, without data or allocations.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

// A simulated CPU. The choice of kernels by libtorch depends on the dtypes that oneDNN supports (vector units also
// affect the time and scratch memory of kernels, which a graph does not represent):
//   mkldnn_bf16   bfloat16: requires AVX-512 or AVX-NE-CONVERT
//   mkldnn_fp16   half: requires AVX512-FP16 or AVX-NE-CONVERT
// For supported dtypes,
// - convolutions and their gradients use oneDNN, with its result strides and an unconditional weight gradient;
// - at::lstm is one mkldnn_rnn_layer per layer and direction (half: only without gradients), which saves its workspace
//   for backward. Otherwise it is decomposed into cells, each of which saves tensors for every step;
// - at::mkldnn_convolution and at::mkldnn_rnn_layer are available; they throw for other dtypes.
//
//     FakeTensorMode old({.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = false, .mkldnn_fp16 = false}}});  // AVX2
struct CpuProfile {
  bool mkldnn_bf16 = this_machine().mkldnn_bf16;
  bool mkldnn_fp16 = this_machine().mkldnn_fp16;

  // Support reported by libtorch on this machine, which respects ONEDNN_MAX_CPU_ISA. Queried once.
  static const CpuProfile& this_machine();

  bool operator==(const CpuProfile&) const = default;
};

// A simulated CUDA device, and `cpu`. device_count also applies to XPU, MPS (at most 1) and PrivateUse1.
struct DeviceProfile {
  std::string name = "NVIDIA H100";
  // Number of fake devices, 0 to 127. Tensors and generators on other devices throw Error. 0: no accelerators.
  int device_count = 8;
  int sm_major = 9;  // CUDA compute capability
  int sm_minor = 0;
  int multiprocessors = 132;
  bool cudnn = true;
  long cudnn_version = cudnn_of_wheel();  // as cudnnGetVersion()
  bool flash_attention = true;
  bool efficient_attention = true;
  // On Hopper and Blackwell with a recent cuDNN, libtorch prefers cuDNN attention to flash attention.
  bool cudnn_attention = true;
  bool math_attention = true;
  CpuProfile cpu = CpuProfile::this_machine();

  bool operator==(const DeviceProfile&) const = default;

  // The cuDNN version of this libtorch's wheel on PyPI: 92100 for 2.13.0 (cmake/torch_versions.txt).
  static long cudnn_of_wheel();
  static DeviceProfile h100() { return {}; }
  static DeviceProfile a100() {
    DeviceProfile profile;
    profile.name = "NVIDIA A100";
    profile.sm_major = 8;
    profile.sm_minor = 0;
    profile.multiprocessors = 108;
    return profile;
  }
};

// Data-dependent sizes, given by the user: the number of elements selected by a mask, of unique values, ...
//
// Fake tensors have no data, so nonzero() and similar operators throw DataDependentError unless the mode provides a
// size. Sizes are named in the order of the queries: "nonzero0", "nonzero1", "unique0", ... The name "nonzero" applies
// to all queries of that kind, limited to the maximum of each. Other sizes can be provided by a function.
//
//     FakeTensorMode mode({.data_sizes = {{"nonzero0", 17}}});
//     at::Tensor rows = mask.nonzero();            // [17, mask.dim()]
//     at::Tensor kept = x.masked_select(mask);     // [17]: the same mask is not queried again
//
// Queries for the same contents (storage, geometry, version) share one name and size; known contents need none.

using NamedDataSizes = std::map<std::string, int64_t>;

struct DataSizeQuery {
  std::string name;          // "nonzero0"
  std::string op;            // "aten::nonzero"
  const at::Tensor& tensor;  // the fake tensor whose data determines the size
  int64_t most;              // upper bound of the size
};
// Returns the size, or std::nullopt if unknown; DataDependentError is thrown then.
using DataSizeHint = std::function<std::optional<int64_t>(const DataSizeQuery&)>;

// Known contents: tensors that are computed from constants and sizes only. Small contents are computed immediately,
// others on demand from the recorded calls. Uniform tensors (ones, zeros, full) are known at any size.

// Limits for computing known contents on demand. Beyond them, DataDependentError reports the cost.
struct ContentsBudget {
  int64_t bytes = int64_t{1} << 30;  // of all intermediate tensors of one query
  double seconds = 10;
};

// Data-dependent values that the program reads on the host (item(), equal(), a comparison in an `if`), given by the
// user; otherwise DataDependentError is thrown. Reads are named in order: "item0", "item1", ..., "equal0", ...
//
//     FakeTensorMode mode({.host_reads = {.values = {{"item0", 2.5}, {"bool", false}}}});
//     FakeTensorMode mode({.host_reads = {.finite = true}});   // clip_grad_norm_, GradScaler
//
// A capture records every value as a guard of the graph, with its source line if known.

struct HostReadQuery {
  std::string name;          // "item0"
  std::string op;            // "aten::_local_scalar_dense"
  const at::Tensor& tensor;  // the fake tensor that is read
  std::string source;        // "train.py:12", if known to the capture
};
// Returns the value, or std::nullopt if unknown.
using HostReadHint = std::function<std::optional<c10::Scalar>(const HostReadQuery&)>;

// Sources of values in order of precedence: `values` by name, `hint`, `values` by kind, `finite`.
struct HostReads {
  std::map<std::string, c10::Scalar> values = {};  // by name "item0", or by kind "bool", "int", "float"
  HostReadHint hint = {};
  // Assume that all floating-point numbers are finite: isfinite(x) is true, isnan(x) and isinf(x) are false everywhere.
  // A GradScaler does not skip steps, and floating-point numbers that are read are 1.
  bool finite = false;
  // Assume that mask inputs mask nothing: inputs of dtype bool, and integer inputs with "mask" in their name, are ones.
  bool masks_full = false;

  bool any() const { return !values.empty() || hint || finite || masks_full; }
};

// The fake tensor mode.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});  // no GPU needed
//     auto x = at::empty({64, 32});                             // "cuda:0", 0 bytes
//     auto y = x.t().matmul(x);                                 // float32 [32, 32] on cuda:0
//
// Within the scope of a mode, factories on this thread create fake tensors (on `device` by default). Real tensors
// passed to operators are converted, and backward runs on the calling thread. Modes nest; the innermost one is active.
// Fake tensors may outlive their mode and remain fake.

struct ModeState;
class CallObserver;

// Treatment of real tensors as operands in a mode.
enum class RealTensors : uint8_t {
  kConvert,   // convert to a fake tensor; the value of a one-element CPU tensor remains known
  kRefuse,    // throw UnsupportedError
  kConstant,  // as kConvert, and the values of small CPU tensors remain known
};
constexpr auto enum_names(RealTensors) { return names_in_order<RealTensors>("convert", "refuse", "constant"); }

// Fields may be left open (std::nullopt, empty, false). A FakeTensorMode then uses the defaults below; a capture uses
// the field of the mode in which its module was created (shadowgraph/capture/capture.h).
struct FakeTensorOptions {
  // Default device of factories: CPU (default), CUDA, XPU, MPS, PrivateUse1 or meta; without index, the current one.
  std::optional<c10::Device> device;
  std::optional<DeviceProfile> profile;  // properties of the simulated device; default: DeviceProfile()
  // Map explicit devices in factory calls to `device`, for TorchScript traces.
  bool map_devices_to_default = false;
  // Data-dependent sizes by name, and a function for the others.
  NamedDataSizes data_sizes = {};
  DataSizeHint data_size_hint = {};
  HostReads host_reads = {};
  std::optional<ContentsBudget> contents_budget;  // default: ContentsBudget()
  std::optional<RealTensors> real_tensors;        // default: kConvert
  // For operators without rule, decomposition and Meta kernel: run the CPU kernel on real tensors of zeros to find the
  // result shapes. Allocates real memory. Not done for operators that index by operands or change an operand's
  // geometry: with zeros they could read out of bounds or give wrong shapes.
  bool allow_fallback_kernels = false;
};

class FakeTensorMode {
 public:
  // Throws Error if fake tensors are unavailable in this process (another library has registered the required hooks),
  // for an unsupported device type, and for a device index beyond the profile's device_count.
  explicit FakeTensorMode(FakeTensorOptions options = {});
  ~FakeTensorMode();
  C10_DISABLE_COPY_AND_ASSIGN(FakeTensorMode);

  // Returns the fake of a real tensor, by default on its device or the one chosen for its fakes before. It has the same
  // dtype, sizes, strides, offset, conjugate and negative bits and requires_grad, and the fake of its gradient unless
  // `with_gradient` is false (required while another thread trains it). Repeated calls return the same fake per device.
  // Fakes share a storage if the real tensors do, and a view becomes a view of its base's fake. Backward through a fake
  // of a non-leaf tensor throws, as its history is real. Throws Error for a device that this mode does not have.
  //
  // Fakes of this mode are returned unchanged; fakes of another mode are converted. Nothing is allocated, and only the
  // values of one-element CPU tensors are read (see RealTensors). Throws UnsupportedError for non-strided layouts.
  at::Tensor from_real(const at::Tensor& real, std::optional<c10::Device> device = std::nullopt,
                       bool with_gradient = true);
  // Releases the fakes of a real tensor that has been or will be destroyed; otherwise they are released eventually.
  void forget(const c10::TensorImpl* real);

  const DeviceProfile& profile() const;

 private:
  friend struct ModeAccess;
  std::shared_ptr<ModeState> state_;
  ModeState* outer_;
  bool outer_multithreading_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Activates a mode that was created on another thread; must be destroyed before the mode. Not for captures.
class FakeTensorModeScope {
 public:
  // Throws Error if the mode belongs to a Capture of another thread.
  explicit FakeTensorModeScope(FakeTensorMode& mode);
  ~FakeTensorModeScope();
  C10_DISABLE_COPY_AND_ASSIGN(FakeTensorModeScope);

 private:
  ModeState* outer_;
  bool outer_multithreading_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Suspends the fake tensor mode in its scope: factories create real tensors. Operations on fake tensors remain fake.
class UnfakeGuard {
 public:
  UnfakeGuard();
  ~UnfakeGuard();
  C10_DISABLE_COPY_AND_ASSIGN(UnfakeGuard);

 private:
  ModeState* suspended_;
  CallObserver* observer_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Returns whether `tensor` is a fake tensor; false for undefined ones.
bool is_fake(const at::Tensor& tensor);

// Returns the known contents of a fake as a new real CPU tensor: literals, and results of scalars and sizes only.
// std::nullopt if they depend on data. Throws DataDependentError beyond the mode's ContentsBudget.
std::optional<at::Tensor> known_contents(const at::Tensor& fake);

// Returns the mode in which the fakes among `tensors` were created, if it still exists; otherwise this thread's mode,
// or nullptr. Throws Error if they belong to different modes.
FakeTensorMode* detect_fake_mode(at::TensorList tensors);

// Returns "fake Float[2, 3] on cuda:0, requires_grad", "real ..." for real tensors, or "undefined". Printing a fake
// with << throws, since that prints its data, unless its contents are known.
std::string to_string(const at::Tensor& tensor);

// Runs a module with real tensors on fakes, and restores it afterwards.
//
//     FakeTensorMode mode;
//     {
//       const FakeModule fake = fakeify(mode, *net);
//       net->forward(x).sum().backward();   // gradients are fakes
//       optimizer.step();                   // writes to the fakes
//     }                                     // the original parameters, gradients, versions and values
//
// C++ modules hold their tensors in members that cannot be replaced from outside. The tensors therefore remain, and
// within the mode every operator call on one of them, including writes, is redirected to its fake (without fakeify,
// writes throw). Their gradients are fakes. The fakes are on the devices of the real tensors. Changes of the tensor
// objects themselves throw: Module::to, `.data =`, t_(), resize_().

// Restores the module when destroyed, which must happen before the mode and the module are. Movable, not copyable.
class FakeModule {
 public:
  FakeModule(FakeModule&&) noexcept;
  FakeModule& operator=(FakeModule&&) noexcept;
  ~FakeModule();

  // Restores the module now. Has no effect when called again.
  void undo() noexcept;

 private:
  friend FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);
  struct State;
  explicit FakeModule(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Includes all submodules; tied tensors, and those that share memory, remain so. Throws UnsupportedError if a tensor
// cannot be made fake (sparse, quantized), leaving the module unchanged.
[[nodiscard]] FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);

// Runs a real program and repeats every operator call on fakes of its operands; reports the first difference.
//
//     CrossRefMode check;                       // on this thread, until destroyed
//     net->forward(x).sum().backward();         // real, with real results
//     // Error: aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake
//
// Compares after every call, below autograd: the number of results, their sizes, dtype, strides, offset and device,
// which results and operands share memory or are identical, and the geometry of operands after a write. Both calls must
// raise, or neither. Operators not supported for fakes (DataDependentError, NoRuleError) are counted, but not compared.

struct CrossRefDifference {
  std::string op;     // "aten::gelu"
  std::string where;  // "result 0", "argument self", "the call"
  std::string what;   // "strides", "dtype", "raised", ...
  std::string real;
  std::string fake;
  std::string to_string() const;  // "aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake"
};

struct CrossRefOptions {
  bool throw_at_first = true;  // throw from the first call that differs, after its real call; false: collect
};

class CrossRefMode {
 public:
  // Throws Error within a FakeTensorMode, since the program must be real.
  explicit CrossRefMode(CrossRefOptions options = {});
  ~CrossRefMode();
  C10_DISABLE_COPY_AND_ASSIGN(CrossRefMode);

  int64_t compared() const;                               // number of calls
  const std::map<std::string, int64_t>& refused() const;  // operator -> number of calls not supported for fakes
  const std::vector<CrossRefDifference>& differences() const;

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<class ObserveMode> mode_;
};

// Simulated addresses of fake storages, for programs that identify tensors by address. In Python, data_ptr() of a fake
// is this address plus its offset; in C++, data_ptr() cannot be overridden and is null plus the offset.

// Returns an address that is never mapped: on x86-64 it is not canonical, so accessing it terminates the process.
// Address ranges of storages below 1 TiB do not overlap. Returns 0 for an empty storage. Throws Error if it has memory.
uintptr_t fake_address(const c10::Storage& storage);
// Returns whether the storage has an address, because it was requested or the storage is being observed.
bool has_fake_address(const c10::Storage& storage);

}  // namespace shadowgraph
