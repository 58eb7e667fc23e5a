// Installs all process-wide hooks, once. They pass through while no mode is active on the calling thread:
//
// - A boxed fallback on kFakeKey (fake tensors) and kernels for composite operators on kCompositeKey, with a
//   fallthrough for all others. Neither key is in any keyset before a fake tensor or a mode exists.
// - The autograd engine stub: a subclass that adds saved-tensor hooks during a capture and otherwise forwards to the
//   previous engine, libtorch's or Python's.
// - No-op device guards for CUDA, XPU, MPS and PrivateUse1, only where none is registered or the registered one has no
//   device.
// - CUDA hooks, if none are registered or there is no GPU: they report no CUDA outside a mode.
// - XPU and MPS hooks, where none are registered.
// - PrivateUse1 hooks at the first backward on its fake tensors, if its backend has registered none.
//
// CUDA, XPU and MPS hooks are registered by static initialization, before libtorch caches them. If it has already, they
// replace the cached ones (core/libtorch/process.h).
//
// On a machine with a working GPU its guard and hooks are left alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace shadowgraph {

// Idempotent and thread-safe. Starts the autograd engine's threads, so locks that they need (Python's GIL) must not be
// held. Throws Error if another library has registered a fallback for one of the dispatch keys.
void install_process_state();

// Restores our CUDA guard after PyTorch's FakeTensorMode has installed its own (DTensor uses one).
void restore_device_guards();

// Provides hooks for tensors that autograd saves on this thread. Owned by ModeState.
class SavedTensorObserver {
 public:
  virtual ~SavedTensorObserver() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() = 0;
};

// Overrides the active mode's saved-tensor observer on this thread.
//
//     const SavedTensorScope scope(&observer);   // for its lifetime: observer's hooks instead of the mode's
//
// Scopes nest; only the innermost is used. Installs the process-wide hooks, since saved-tensor hooks need our engine;
// throws Error if that fails.

class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorObserver* observer);
  ~SavedTensorScope();
  C10_DISABLE_COPY_AND_ASSIGN(SavedTensorScope);

 private:
  SavedTensorObserver* outer_;
};

// Returns the observer of the active mode on this thread; nullptr if there is none.
SavedTensorObserver* saved_tensor_observer_of_mode();

// Holds the data of a tensor that autograd saves.
//
// Holding the tensor itself would create a reference cycle through its grad_fn. Repeats eager's check against in-place
// changes, which saved-tensor hooks disable.

class SavedData {
 public:
  explicit SavedData(const at::Tensor& tensor);
  // Throws c10::Error, as in eager, if the tensor has been modified since.
  const at::Tensor& unpack() const;

 private:
  at::Tensor data_;
  c10::VariableVersion version_counter_;
  uint32_t version_ = 0;
};

}  // namespace shadowgraph
