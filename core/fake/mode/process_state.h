// Makes everything that shadowgraph changes in the process. All of it is installed once, and passes through while no
// mode is active on the calling thread:
//
// - A boxed fallback on kFakeKey (fake tensors) and kernels for composite operators on kCompositeKey, with a
//   fallthrough for all others. Neither key is in any keyset before a fake tensor or a mode exists.
// - The autograd engine stub: a subclass that adds saved-tensor hooks during a capture. Otherwise it is the engine that
//   was there before: libtorch's own, or Python's.
// - No-op device guards for CUDA, XPU, MPS and PrivateUse1, only where none is registered or the registered one has no
//   device.
// - CUDA hooks, if none are registered or there is no GPU: "no CUDA" outside a mode.
// - XPU and MPS hooks, where none are registered (core/fake/mode/process_state.cpp).
// - PrivateUse1 hooks at the first backward on fakes of it, if its backend has registered none.
//
// CUDA, XPU and MPS hooks come before libtorch asks for them (static initialisation). Where it has asked, they come in
// place of what it found (core/libtorch/process.h).
//
// On a machine with a working GPU its guard and hooks are left alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace shadowgraph {

// Idempotent and thread-safe. Starts the autograd engine's threads, so a lock that they need (Python's) must not be
// held. Throws Error if another library has taken one of the dispatch keys.
void install_process_state();

// Puts our CUDA guard back where torch's own FakeTensorMode has put another that pretends (DTensor uses one).
void keep_device_guards();

// Is told about tensors that autograd saves, on this thread. Held by ModeState.
class SavedTensorObserver {
 public:
  virtual ~SavedTensorObserver() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() = 0;
};

// Chooses who is asked about tensors that autograd saves on this thread, besides the active mode
// (core/fake/mode/process_state.h).
//
//     const SavedTensorScope scope(&observer);   // until its end: observer's hooks, instead of the mode's
//
// Scopes nest; the innermost alone is asked. Installs the process state, since libtorch has no saved-tensor hooks
// without an engine that gives them; throws Error where that cannot be done.

class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorObserver* observer);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  SavedTensorObserver* outer_;
};

// Returns the observer of the active mode on this thread; nullptr if there is none.
SavedTensorObserver* saved_tensor_observer_of_mode();

// Stands in for a tensor that autograd saves.
//
// Holding the tensor itself would close a cycle through its grad_fn, so this holds its data. Eager's check against
// in-place changes, which saved-tensor hooks switch off, is repeated here.

class SavedData {
 public:
  explicit SavedData(const at::Tensor& tensor);
  // Throws c10::Error, as eager does, if the tensor was written to since.
  const at::Tensor& unpack() const;

 private:
  at::Tensor data_;
  c10::VariableVersion version_counter_;
  uint32_t version_ = 0;
};

}  // namespace shadowgraph
