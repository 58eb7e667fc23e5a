// Fake tensors: programs run for their shapes, dtypes, strides, aliasing and devices, with no data and no allocation.
//
// Captures and deferred initialisation run programs in it; it also serves alone, to see what a program does. A call
// costs about what libtorch's own Meta kernel costs.
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

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// What the pretended device is and can do. Hooks and rules obey it where eager would ask the driver, the processor or a
// library.

// A pretended CPU. Vector units change how long a kernel takes and what scratch it has inside, which no graph shows. A
// graph shows which kernels there are, and libtorch decides that by what oneDNN can compute with:
//   mkldnn_bf16   bfloat16: with AVX-512, or AVX-NE-CONVERT
//   mkldnn_fp16   half: with AVX512-FP16, or AVX-NE-CONVERT
// Where it can, in that dtype,
// - convolutions and their gradients are oneDNN's: strides of results, and a weight gradient nobody asked for;
// - at::lstm is one mkldnn_rnn_layer a layer and direction (half: only without gradients), which keeps its workspace
//   for backward. Otherwise it is its cells, each of which keeps what autograd keeps of every step;
// - at::mkldnn_convolution and at::mkldnn_rnn_layer run, and throw where it cannot.
//
//     FakeTensorMode old({.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = false, .mkldnn_fp16 = false}}});   // AVX2 and no more
struct CpuProfile {
  bool mkldnn_bf16 = this_machine().mkldnn_bf16;
  bool mkldnn_fp16 = this_machine().mkldnn_fp16;

  // What libtorch says here, which obeys ONEDNN_MAX_CPU_ISA. Asked once.
  static const CpuProfile& this_machine();

  bool operator==(const CpuProfile&) const = default;
};

// The members before `cpu` are of a pretended CUDA device, device_count of XPU, MPS (one at most) and PrivateUse1 too.
struct DeviceProfile {
  std::string name = "NVIDIA H100";
  // How many fake devices of the kind exist, 0 to 127. Tensors and generators on others are refused: Error.
  // With 0 that is every accelerator, as on a machine without any.
  int device_count = 8;
  int sm_major = 9;  // CUDA compute capability
  int sm_minor = 0;
  int multiprocessors = 132;
  bool cudnn = true;
  long cudnn_version = cudnn_of_wheel();  // as cudnnGetVersion()
  bool flash_attention = true;
  bool efficient_attention = true;
  // On Hopper and Blackwell with a recent cuDNN, libtorch takes cuDNN attention before flash.
  bool cudnn_attention = true;
  bool math_attention = true;
  CpuProfile cpu = CpuProfile::this_machine();

  bool operator==(const DeviceProfile&) const = default;

  // What the wheel of this libtorch on PyPI brings: 92100 with 2.13.0 (cmake/torch_versions.txt).
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

// ---------------------------------------------------------------------------------------------------------------------
// Sizes of results that depend on data, given by the user: how many elements a mask keeps, how many values are unique.
//
// Fake tensors have no data, so nonzero() and its kin throw DataDependentError unless the mode has a size for them.
// Sizes have names, given in the order of asking: "nonzero0", "nonzero1", "unique0", ... The name "nonzero" stands for
// all of its kind: so many, or as many as there can be. A function can be asked too, for those that are not given by
// name.
//
//     FakeTensorMode mode({.data_sizes = {{"nonzero0", 17}}});
//     at::Tensor rows = mask.nonzero();            // [17, mask.dim()]
//     at::Tensor kept = x.masked_select(mask);     // [17]: the same mask is not asked twice
//
// The same question about the same contents (storage, geometry and version) has one name and one size. After a write to
// the tensor it is another question. What is asked about a tensor whose contents are known needs no hint.

using NamedDataSizes = std::map<std::string, int64_t>;

struct DataSizeQuestion {
  std::string name;          // "nonzero0"
  std::string op;            // "aten::nonzero"
  const at::Tensor& tensor;  // whose data decides: a fake
  int64_t most;              // what the answer can be at most
};
// Nothing: the hint does not know either, and DataDependentError is thrown.
using DataSizeHint = std::function<std::optional<int64_t>(const DataSizeQuestion&)>;

// ---------------------------------------------------------------------------------------------------------------------
// What a program computes from constants and sizes alone is known. Small contents are known at once, the rest when
// somebody reads it, from a record of the calls that made it. Uniform tensors (ones, zeros, full) are known at any
// size.

// What computing contents for a reader may cost. Beyond it DataDependentError, which says what it would have cost.
struct ContentsBudget {
  int64_t bytes = int64_t{1} << 30;  // of all tensors on the way, for one reader
  double seconds = 10;
};

// Values that the program reads (item(), equal(), a comparison in an `if`) and that data decides: given by the user, or
// DataDependentError is thrown. Reads are named in the order of asking, "item0", "item1", ..., "equal0", ...
//
//     FakeTensorMode mode({.host_reads = {.values = {{"item0", 2.5}, {"bool", false}}}});
//     FakeTensorMode mode({.host_reads = {.finite = true}});   // clip_grad_norm_, GradScaler
//
// A capture notes every answer as a guard of the graph, with the line of the program that asked where it is known.

struct HostReadQuestion {
  std::string name;          // "item0"
  std::string op;            // "aten::_local_scalar_dense"
  const at::Tensor& tensor;  // what is read: a fake
  std::string source;        // "train.py:12", where a capture knows it
};
// Nothing: the hint does not know either.
using HostReadHint = std::function<std::optional<c10::Scalar>(const HostReadQuestion&)>;

// Asked in this order: `values` by name, `hint`, `values` by kind, `finite`.
struct HostReads {
  std::map<std::string, c10::Scalar> values = {};  // "item0", or for all others of a kind "bool", "int", "float"
  HostReadHint hint = {};
  // No floating-point number is an infinity or NaN: isfinite(x) is true everywhere, isnan(x) and isinf(x) nowhere. A
  // GradScaler finds nothing to skip, and a floating-point number that is read is 1.
  bool finite = false;
  // Inputs that mask hide nothing: those of dtype bool and those of integers with "mask" in their names are full of
  // ones.
  bool masks_full = false;

  bool any() const { return !values.empty() || hint || finite || masks_full; }
};

// ---------------------------------------------------------------------------------------------------------------------
// Fake tensors: run a program for its shapes, dtypes, strides, aliasing and devices, with no data and no allocation.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});  // no GPU needed
//     auto x = at::empty({64, 32});                             // "cuda:0", 0 bytes
//     auto y = x.t().matmul(x);                                 // float32 [32, 32] on cuda:0
//
// While a mode lives, factories on this thread make fake tensors (on `device` unless told otherwise). Real tensors that
// meet them are converted on the way in, and backward runs on the calling thread. Modes nest; the innermost one counts.
// Fake tensors may outlive their mode and still behave as fake tensors. The idea is PyTorch's FakeTensorMode and
// torchdistx' fake tensors, without Python.

struct ModeState;
class CallObserver;

// What becomes of a real tensor that meets fakes inside a mode.
enum class RealTensors : uint8_t {
  kConvert,   // its fake takes its place; the value of a CPU tensor of one element stays known
  kRefuse,    // UnsupportedError
  kConstant,  // as kConvert, and small CPU tensors keep their values
};
constexpr auto enum_names(RealTensors) { return names_in_order<RealTensors>("convert", "refuse", "constant"); }

// A field may be left open (nullopt, empty, false). A FakeTensorMode then takes the defaults named here, and a capture
// takes the field from the mode that its module was made in (shadowgraph/capture/capture.h).
struct FakeTensorOptions {
  // For factories that name none: CPU, CUDA, XPU, MPS, PrivateUse1 or meta. Without an index: the current one. By
  // default the CPU.
  std::optional<c10::Device> device;
  std::optional<DeviceProfile> profile;  // what a pretended device can do; by default DeviceProfile()
  // Explicit devices in factory calls mean `device`: for TorchScript traces, which carry the device they were made on.
  bool map_devices_to_default = false;
  // Sizes of results that depend on data, by name, and a function asked for the others.
  NamedDataSizes data_sizes = {};
  DataSizeHint data_size_hint = {};
  HostReads host_reads = {};
  std::optional<ContentsBudget> contents_budget;  // by default ContentsBudget()
  std::optional<RealTensors> real_tensors;        // by default kConvert
  // Operators without rule, decomposition and Meta kernel: run their CPU kernel on zeros, of the real sizes, to see
  // what comes out. Allocates real memory. Operators that index by their operands or change an operand's geometry are
  // refused: zeros could make them read out of bounds, or lie.
  bool unknown_operators_on_zeros = false;
};

class FakeTensorMode {
 public:
  // Throws Error if libtorch in this process cannot be used (another library has taken what fake tensors
  // need). Throws Error for a device type that cannot be pretended, or a device beyond the profile's.
  explicit FakeTensorMode(FakeTensorOptions options = {});
  ~FakeTensorMode();
  FakeTensorMode(const FakeTensorMode&) = delete;
  FakeTensorMode& operator=(const FakeTensorMode&) = delete;

  // Returns the fake of a real tensor, on `device` or else where the real one is, or where its fakes were told to be.
  // It has the same dtype, sizes, strides, offset, conjugate and negative bits and requires_grad, and the fake of its
  // gradient. The same tensor gives the same fake on a device. Tensors that share a storage give fakes that share one,
  // and a view gives a view of its base's fake. A tensor with a history that requires grad gives one whose backward
  // ends in an error: the history is real. Throws Error for a device that this mode does not have.
  //
  // A fake of this mode is its own fake; one of another mode gets a fake of its own. Nothing is allocated, and nothing
  // read but the value of a CPU tensor of one element (see RealTensors). Throws UnsupportedError for layouts other than
  // dense strided ones.
  at::Tensor from_real(const at::Tensor& real, std::optional<c10::Device> device = std::nullopt);
  // Lets go of the fakes of a real tensor that is gone, or about to be: otherwise that happens now and then.
  void forget(const c10::TensorImpl* real);

  // What the pretended device can do.
  const DeviceProfile& profile() const;

 private:
  friend struct ModeAccess;
  std::shared_ptr<ModeState> state_;
  ModeState* outer_;
  bool outer_multithreading_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// This thread enters a mode that another one made; leave it before the mode ends. Not one that records: a capture is of
// one thread.
class FakeTensorModeScope {
 public:
  // Throws Error if the mode belongs to a CaptureSession of another thread.
  explicit FakeTensorModeScope(FakeTensorMode& mode);
  ~FakeTensorModeScope();
  FakeTensorModeScope(const FakeTensorModeScope&) = delete;
  FakeTensorModeScope& operator=(const FakeTensorModeScope&) = delete;

 private:
  ModeState* outer_;
  bool outer_multithreading_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Real tensors again, until it is destroyed: factories make real tensors. Operations on fake tensors stay fake.
class UnfakeGuard {
 public:
  UnfakeGuard();
  ~UnfakeGuard();
  UnfakeGuard(const UnfakeGuard&) = delete;
  UnfakeGuard& operator=(const UnfakeGuard&) = delete;

 private:
  ModeState* suspended_;
  CallObserver* observer_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Whether `tensor` is a fake tensor; false for undefined ones.
bool is_fake(const at::Tensor& tensor);

// What a fake is known to hold, as a real CPU tensor of its own: literals, and what follows from numbers and sizes
// alone. Nothing if data decides it. Throws DataDependentError beyond the mode's ContentsBudget.
std::optional<at::Tensor> known_contents(const at::Tensor& fake);

// The mode that the fakes among `tensors` were made in, if it is still there; otherwise this thread's, or nullptr.
// Throws Error if they are of two modes.
FakeTensorMode* detect_fake_mode(at::TensorList tensors);

// "fake Float[2, 3] on cuda:0, requires_grad"; for a real tensor the same with "real", undefined: "undefined". Printing
// a fake with << throws, since that would print its data, unless it is known.
std::string to_string(const at::Tensor& tensor);

}  // namespace shadowgraph

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// A module built of real tensors, run on fakes, and given back as it was.
//
//     FakeTensorMode mode;
//     {
//       const FakeModule fake = fakeify(mode, *net);
//       net->forward(x).sum().backward();   // gradients are fakes
//       optimizer.step();                   // writes to the fakes
//     }                                     // the very same parameters, gradients, versions and values as before
//
// C++ modules keep their tensors in members that nothing outside can replace. So the tensors stay, and stand for their
// fakes. Inside the mode every operator call on one is on its fake, writes included; without fakeify those are refused.
// Gradients that arrive at one are fakes. The fakes pretend to be where the real tensors are. What would change the
// tensor object itself is refused: Module::to, `.data =`, t_(), resize_().

class FakeTensorMode;

// Undoes it at the end of its life, which must come before that of the mode and of the module. Moves, does not copy.
class FakeModule {
 public:
  FakeModule(FakeModule&&) noexcept;
  FakeModule& operator=(FakeModule&&) noexcept;
  ~FakeModule();

  // Undoes it now; again: nothing.
  void undo() noexcept;

 private:
  friend FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);
  struct State;
  explicit FakeModule(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All parameters and buffers of the module and of those in it; tied ones, and those that share memory, stay so. Throws
// UnsupportedError if one of them cannot be made fake (sparse, quantised), and then changes nothing.
[[nodiscard]] FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module);

// ---------------------------------------------------------------------------------------------------------------------
// Runs a real program and, beside every operator call, the same call on fakes of its operands; tells the first that
// differs.
//
//     CrossRefMode check;                       // on this thread, until it is destroyed
//     net->forward(x).sum().backward();         // real, with real results
//     // Error: aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake
//
// The comparison is below autograd, after every call. It covers how many results there are, and their sizes, dtype,
// strides, offset and device. It also covers which results and operands share memory or are the same, and the geometry
// of operands after a write. Both must raise or neither. Operators that fakes refuse (DataDependentError, NoRuleError)
// are counted, not compared. The idea is PyTorch's CrossRefFakeMode.

struct CrossRefDifference {
  std::string op;     // "aten::gelu"
  std::string where;  // "result 0", "argument self", "the call"
  std::string what;   // "strides", "dtype", "raised", ...
  std::string real;
  std::string fake;
  std::string to_string() const;  // "aten::gelu, result 0: strides: [1, 4] real, [8, 1] fake"
};

struct CrossRefOptions {
  bool throw_at_first = true;  // from the call that differs, once the real one is done; otherwise collected
};

class CrossRefMode {
 public:
  // Throws Error inside a FakeTensorMode: the program must be real.
  explicit CrossRefMode(CrossRefOptions options = {});
  ~CrossRefMode();
  CrossRefMode(const CrossRefMode&) = delete;
  CrossRefMode& operator=(const CrossRefMode&) = delete;

  int64_t compared() const;                               // calls
  const std::map<std::string, int64_t>& refused() const;  // operator -> calls that fakes refused
  const std::vector<CrossRefDifference>& differences() const;

 private:
  class Observer;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<class ObserveMode> mode_;
};

// Addresses at which the storages of fake tensors pretend to be, for programs that know tensors by where they are.
//
//     pretended_address(tensor.storage())       // distinct for each storage, the same as long as it lives
//
// Python's data_ptr() of a fake is this address plus its offset; C++'s data_ptr() cannot be told of it, and is null
// plus the offset. What a graph recorded needs none of this: its values name their storages (StorageId), and nodes say
// what autograd keeps (Graph::saved).

// Returns an address that no memory has: on x86-64 it is not canonical, so that reading or writing there ends the
// process. Ranges of storages of less than a TiB do not overlap. 0 for an empty storage. Throws Error for one with
// memory.
uintptr_t pretended_address(const c10::Storage& storage);
// Whether the storage has one, because it was asked for or somebody watches the storage.
bool has_pretended_address(const c10::Storage& storage);

}  // namespace shadowgraph
