// Dispatch keys and thread-local state of core/.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"

namespace shadowgraph {

// Below autograd, above every backend: fake tensors run and nodes are recorded here. libtorch 2.13.0 defines the key
// but registers nothing on it; process_state.cpp verifies that.
inline constexpr c10::DispatchKey kFakeKey = c10::DispatchKey::Fake;

// Above autograd and autocast: composite calls (aten::linear, ...) are reported here before they decompose.
inline constexpr c10::DispatchKey kCompositeKey = c10::DispatchKey::DeferredInit;

// All thread-local state of core/: the active mode, whether a kernel is running, current scopes.
//
// Read on every operator call and every device() of a fake tensor, so it is one plain thread-local record with the
// initial-exec model (one load, no call). State with a destructor is in ThreadObjects.

struct ModeState;
struct LazyOutput;
struct OperatorInfo;
class CallObserver;
class SHADOWGRAPH_API Capture;
class SavedTensorObserver;

struct ThreadState {
  // Above 0 while a Meta kernel or a rule runs. Fake tensors then report "meta" as their device, and calls are part of
  // the outer operator.
  uint32_t kernel_depth = 0;
  // A user-defined kernel is running (core/fake/dispatch/fallback.cpp): rules::empty creates fakes.
  bool in_user_kernel = false;
  // The simulated device of the outermost call, for rules.
  c10::DeviceType kernel_device_type = c10::DeviceType::CPU;
  c10::DeviceIndex kernel_device_index = -1;
  // The innermost active FakeTensorMode, nullptr outside. Fake tensors work without one.
  ModeState* mode = nullptr;
  uint32_t mode_id = 0;  // of `mode`, for tensors created in it
  // An owning pointer to a new tensor that at::tensor({...}) may write through its data pointer
  // (core/fake/known_contents.h).
  c10::TensorImpl* literal = nullptr;
  // Address of c10's included and excluded dispatch keys of this thread; nullptr until first used. c10's accessors look
  // it up on every use.
  c10::impl::PODLocalDispatchKeySet* dispatch_keys = nullptr;

  // ---- Current scopes, innermost; nullptr: none
  Capture* capture = nullptr;
  SavedTensorObserver* saved_tensors = nullptr;     // overrides the mode's (core/fake/mode/process_state.h)
  LazyOutput* lazy_output = nullptr;                // core/fake/dispatch/call.h
  const OperatorInfo* run_as_functional = nullptr;  // an out= form, while its functional form runs

  c10::DeviceType backward_on = c10::DeviceType::CPU;  // the accelerator of the running backward; CPU: none
  std::array<c10::DeviceIndex, static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)> current_device{};  // by type

  c10::Device kernel_device() const { return {kernel_device_type, kernel_device_index}; }
  void set_kernel_device(c10::Device device) {
    kernel_device_type = device.type();
    kernel_device_index = device.index();
  }
};

extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

// Thread-local state with a destructor.
struct ThreadObjects {
  std::unordered_map<c10::Device, at::Generator> generators;  // of simulated devices
  // The storage that must not be read until the next call (core/fake/known_contents.h). Weak, to leave use counts
  // unchanged.
  c10::weak_intrusive_ptr<c10::StorageImpl> refused{c10::intrusive_ptr<c10::StorageImpl>()};
  std::shared_ptr<void> convolution_cache;  // the cache of core/fake/rules/convolution.cpp
};
ThreadObjects& thread_objects();

// Makes fakes report "meta" as their device, as inside a kernel, for its lifetime.
class KernelDepth {
 public:
  KernelDepth() { ++thread_state.kernel_depth; }
  ~KernelDepth() { --thread_state.kernel_depth; }
  C10_DISABLE_COPY_AND_ASSIGN(KernelDepth);
};

// ---- Translation of errors that leave libtorch's dispatcher

extern std::atomic<ErrorTranslator> error_translator;
extern thread_local int untranslated;

// Disables translation on this thread for its lifetime: the library itself called the operator and catches the error.
class UntranslatedErrors {
 public:
  UntranslatedErrors() { ++untranslated; }
  ~UntranslatedErrors() { --untranslated; }
  C10_DISABLE_COPY_AND_ASSIGN(UntranslatedErrors);
};

// Throws the translator's exception, if a translator is set (set_error_translator).
inline void translate(const Error& error) {
  if (untranslated > 0) return;
  if (const ErrorTranslator translator = error_translator.load(std::memory_order_relaxed)) translator(error);
}

// ---- torch.autocast. Wraps ATen/autocast_mode.h, which includes all of ATen.

bool is_autocast_available(c10::DeviceType device);
bool is_autocast_enabled(c10::DeviceType device);

// Sets autocast of this thread for one device type, for its lifetime. Like torch.autocast, keeps the cache of cast
// weights until the outermost scope ends.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled = true, bool cache = true);
  ~AutocastScope();
  C10_DISABLE_COPY_AND_ASSIGN(AutocastScope);

 private:
  c10::DeviceType device_;
  bool enabled_;
  bool cache_;
  c10::ScalarType dtype_;
};

}  // namespace shadowgraph
