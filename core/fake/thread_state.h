// Names the two dispatch keys that shadowgraph takes; everything else in the tree refers to these names.
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

// Below autograd, above every backend: where fake tensors run and where nodes are recorded. libtorch 2.13.0 has the key
// and registers nothing on it; process_state.cpp checks that at start-up.
inline constexpr c10::DispatchKey kFakeKey = c10::DispatchKey::Fake;

// Above autograd and autocast: where composite calls (aten::linear, ...) are seen before they decompose.
inline constexpr c10::DispatchKey kCompositeKey = c10::DispatchKey::DeferredInit;

// Holds all that core/ keeps for a thread: which mode is active, whether a kernel is running, what is under way.
//
// It is read on every operator call and on every device() of a fake tensor. Hence it is one plain thread-local record
// with the initial-exec model (one load, no call). What a thread must destroy when it ends is beside it, behind a call.

struct ModeState;
struct LazyOutput;
struct OperatorInfo;
class CallObserver;
class SHADOWGRAPH_API CaptureSession;
class SavedTensorObserver;

struct ThreadState {
  // Above 0 while a Meta kernel or a rule runs. Fake tensors then answer "meta" for their device, and inner calls are
  // part of the outer operator.
  uint32_t kernel_depth = 0;
  // A kernel that describes a user's operator runs (core/fake/dispatch/fallback.cpp): rules::empty makes fakes.
  bool in_own_kernel = false;
  // The pretended device of the outermost call, for rules.
  c10::DeviceType kernel_device_type = c10::DeviceType::CPU;
  c10::DeviceIndex kernel_device_index = -1;
  // The innermost active FakeTensorMode, nullptr outside. Fake tensors work without one.
  ModeState* mode = nullptr;
  uint32_t mode_id = 0;  // of `mode`, for tensors made in it
  // A new tensor that at::tensor({...}) may be about to write through its data pointer (core/fake/known_contents.h): a
  // reference is counted.
  c10::TensorImpl* literal = nullptr;
  // Where c10 keeps this thread's included and excluded dispatch keys; nullptr until first asked for. Its own accessors
  // look the address up at every use.
  c10::impl::PODLocalDispatchKeySet* dispatch_keys = nullptr;

  // ---- What is under way, innermost first; nullptr: nothing
  CaptureSession* capture = nullptr;
  SavedTensorObserver* saved_tensors = nullptr;     // asked instead of the mode's (core/fake/mode/process_state.h)
  LazyOutput* lazy_output = nullptr;                // core/fake/dispatch/call.h
  const OperatorInfo* run_as_functional = nullptr;  // an out= form, while its functional form runs

  // ---- Pretended devices
  c10::DeviceType backward_on = c10::DeviceType::CPU;  // the accelerator that a backward under way is on; CPU: none
  std::array<c10::DeviceIndex, static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)> current_device{};  // by type

  c10::Device kernel_device() const { return {kernel_device_type, kernel_device_index}; }
  void set_kernel_device(c10::Device device) {
    kernel_device_type = device.type();
    kernel_device_index = device.index();
  }
};

extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

// What is destroyed with the thread.
struct ThreadBelongings {
  std::unordered_map<c10::Device, at::Generator> generators;  // of pretended devices
  // The storage whose readers are refused until the next call (core/fake/known_contents.h). It is weak: code that
  // counts references must not notice.
  c10::weak_intrusive_ptr<c10::StorageImpl> refused{c10::intrusive_ptr<c10::StorageImpl>()};
  std::shared_ptr<void> convolution_answers;  // the cache of core/fake/rules/convolution.cpp
};
ThreadBelongings& thread_belongings();

// Serves code that looks at fakes from outside a kernel and must see them as a kernel does. Internal to core/.

// While it lives, fakes answer as within a kernel: "meta" for their device.
class KernelDepth {
 public:
  KernelDepth() { ++thread_state.kernel_depth; }
  ~KernelDepth() { --thread_state.kernel_depth; }
  KernelDepth(const KernelDepth&) = delete;
  KernelDepth& operator=(const KernelDepth&) = delete;
};

// Translates our errors on their way out through libtorch's dispatcher, to whoever called an operator. Internal to
// core/.

extern std::atomic<ErrorTranslator> error_translator;
extern thread_local int untranslated;

// While it lives, errors of this thread stay what they are: the library called the operator, and catches them itself.
class UntranslatedErrors {
 public:
  UntranslatedErrors() { ++untranslated; }
  ~UntranslatedErrors() { --untranslated; }
  UntranslatedErrors(const UntranslatedErrors&) = delete;
  UntranslatedErrors& operator=(const UntranslatedErrors&) = delete;
};

// Throws what the translator makes of it, if there is one (set_error_translator).
inline void translate(const Error& error) {
  if (untranslated > 0) return;
  if (const ErrorTranslator translator = error_translator.load(std::memory_order_relaxed)) translator(error);
}

// torch.autocast. The header of libtorch that has it brings all of ATen along; only autocast.cpp pays for that.

bool is_autocast_available(c10::DeviceType device);
bool is_autocast_enabled(c10::DeviceType device);

// While it lives, autocast of this thread is as given, on one kind of device. As torch.autocast enters and leaves: copies
// of weights that were cast are kept until the outermost scope ends.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled = true, bool cache = true);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_;
  bool cache_;
  c10::ScalarType dtype_;
};

}  // namespace shadowgraph
