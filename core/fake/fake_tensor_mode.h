// Fake tensors: run a program for its shapes, dtypes, strides, aliasing and devices, with no data and no allocation.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});  // no GPU needed
//     auto x = at::empty({64, 32});                             // "cuda:0", 0 bytes
//     auto y = x.t().matmul(x);                                 // float32 [32, 32] on cuda:0
//
// While a mode lives, factories on this thread make fake tensors (on `device` unless told otherwise), real tensors that
// meet them are converted on the way in, and backward runs on the calling thread. Modes nest; the innermost one counts.
// Fake tensors may outlive their mode and still behave as fake tensors. The idea is PyTorch's FakeTensorMode and
// torchdistx' fake tensors, without Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>

#include "core/fake/data_sizes.h"
#include "core/fake/device_profile.h"

namespace shadowgraph {

struct ModeState;
class CallObserver;

// What becomes of a real tensor that meets fakes inside a mode.
enum class RealTensors : uint8_t {
  kConvert,   // its fake takes its place; the value of a CPU tensor of one element stays known
  kRefuse,    // RealTensorError
  kConstant,  // as kConvert, and small CPU tensors keep their values
};

struct FakeTensorOptions {
  // For factories that name none: CPU, CUDA, XPU, MPS, PrivateUse1 or meta. Without an index: the current one.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  DeviceProfile profile;  // what a pretended CUDA device can do
  // Explicit devices in factory calls mean `device`: for TorchScript traces, which carry the device they were made on.
  bool map_devices_to_default = false;
  // Sizes of results that depend on data, by name: core/fake/data_sizes.h.
  NamedDataSizes data_sizes = {};
  DataSizeHint data_size_hint = {};
  RealTensors real_tensors = RealTensors::kConvert;
  // Operators without rule, decomposition and Meta kernel: run their CPU kernel on zeros, of the real sizes, to see what
  // comes out. Allocates real memory. Operators that index by their operands or change an operand's geometry are
  // refused: zeros could make them read out of bounds, or lie.
  bool unknown_operators_on_zeros = false;
};

class FakeTensorMode {
 public:
  // Throws EnvironmentError if libtorch in this process cannot be used (see core/fake/process_state.h), and Error for a
  // device type that cannot be pretended.
  explicit FakeTensorMode(FakeTensorOptions options = {});
  ~FakeTensorMode();
  FakeTensorMode(const FakeTensorMode&) = delete;
  FakeTensorMode& operator=(const FakeTensorMode&) = delete;

  // The fake of a real tensor, on `device` or else where the real one is: dtype, sizes, strides, offset, conjugate and
  // negative bits, requires_grad, and the fake of its gradient. The same tensor gives the same fake, tensors that share a
  // storage give fakes that share one, a view gives a view of its base's fake. A tensor with a history that requires
  // grad gives one whose backward ends in an error: the history is real. A fake of this mode is its own fake; one of
  // another mode gets a fake of its own. Nothing is allocated, and nothing read but the value of a CPU tensor of one
  // element (see RealTensors). Throws RealTensorError for layouts other than dense strided ones.
  at::Tensor from_real(const at::Tensor& real, std::optional<c10::Device> device = std::nullopt);

  ModeState& state() { return *state_; }
  // For records that go on after the mode (core/deferred).
  const std::shared_ptr<ModeState>& shared_state() const { return state_; }

 private:
  std::shared_ptr<ModeState> state_;
  ModeState* outer_;
  bool outer_multithreading_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// This thread enters a mode that another one made; leave it before the mode ends. Not one that records: a capture is of one
// thread.
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

// The mode that the fakes among `tensors` were made in, if it is still there; otherwise this thread's, or nullptr. Throws
// Error if they are of two modes.
FakeTensorMode* detect_fake_mode(at::TensorList tensors);

// "fake Float[2, 3] on cuda:0, requires_grad"; for a real tensor the same with "real", undefined: "undefined". Printing a
// fake with << throws, since that would print its data, unless it is known.
std::string to_string(const at::Tensor& tensor);

}  // namespace shadowgraph
