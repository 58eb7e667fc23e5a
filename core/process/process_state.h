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
// - XPU and MPS hooks, where none are registered (core/process/accelerator.h).
// - PrivateUse1 hooks at the first backward on fakes of it, if its backend has registered none.
//
// CUDA, XPU and MPS hooks come before libtorch asks for them (static initialisation). Where it has asked, they come in
// place of what it found (core/libtorch/cached_hooks.h).
//
// On a machine with a working GPU its guard and hooks are left alone.
#pragma once

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace shadowgraph {

// Idempotent and thread-safe. Starts the autograd engine's threads, so a lock that they need (Python's) must not be
// held. Throws EnvironmentError if another library has taken one of the dispatch keys.
void install_process_state();

// Puts our CUDA guard back where torch's own FakeTensorMode has put another that pretends (DTensor uses one).
void keep_device_guards();

// Is told about tensors that autograd saves, on this thread. Held by ModeState.
class SavedTensorObserver {
 public:
  virtual ~SavedTensorObserver() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() = 0;
};

}  // namespace shadowgraph
