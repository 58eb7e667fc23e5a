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

#include "core/fake/data_sizes.h"
#include "core/fake/device_profile.h"

namespace shadowgraph {

struct ModeState;
class CallObserver;

struct FakeTensorOptions {
  c10::Device device = c10::Device(c10::DeviceType::CPU);  // for factories that name none; CUDA without index is cuda:0
  DeviceProfile profile;                                   // what a pretended CUDA device can do
  // Explicit devices in factory calls mean `device`: for TorchScript traces, which carry the device they were made on.
  bool map_devices_to_default = false;
  // Sizes of results that depend on data, by name: core/fake/data_sizes.h.
  NamedDataSizes data_sizes = {};
};

class FakeTensorMode {
 public:
  // Throws EnvironmentError if libtorch in this process cannot be used (see core/fake/process_state.h), and Error for a
  // device type other than CPU, CUDA and meta.
  explicit FakeTensorMode(FakeTensorOptions options = {});
  ~FakeTensorMode();
  FakeTensorMode(const FakeTensorMode&) = delete;
  FakeTensorMode& operator=(const FakeTensorMode&) = delete;

  // The fake of a real tensor, on `device` or else where the real one is. The same tensor gives the same fake, tensors
  // that share a storage give fakes that share one. Nothing is read or allocated.
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

}  // namespace shadowgraph
