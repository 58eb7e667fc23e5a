// Everything shadowgraph changes in the process, all of it here, installed once, and passing through while no mode is
// active on the calling thread:
//
//   - a boxed fallback on kFakeKey (fake tensors) and kernels for composite operators on kCompositeKey, with a
//     fallthrough for all others; neither key is in any keyset before a fake tensor or a mode exists;
//   - the autograd engine stub: a subclass that adds saved-tensor hooks during a capture and is the base engine otherwise;
//   - no-op device guards for CUDA, XPU, MPS and PrivateUse1, only where none is registered or the registered one has no
//     device;
//   - CUDA hooks, if none are registered or there is no GPU, before libtorch asks for them (static initialisation): "no
//     CUDA" outside a mode. XPU and MPS hooks, where none are registered (core/process/accelerator.h); those of PrivateUse1
//     at the first backward on fakes of it, if its backend has registered none.
//
// On a machine with a working GPU its guard and hooks are left alone.
#pragma once

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace shadowgraph {

// Idempotent and thread-safe. Throws EnvironmentError if another library has taken one of the dispatch keys.
void install_process_state();

// Throws EnvironmentError if libtorch has looked for CUDA hooks, once for the life of the process, and found those of
// libtorch_cuda although there is no GPU: backward on fake CUDA would ask them. After install_process_state.
void check_cuda_can_be_pretended();

// Who is told about tensors that autograd saves, on this thread. Held by ModeState.
class SavedTensorObserver {
 public:
  virtual ~SavedTensorObserver() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_saved_tensor() = 0;
};

}  // namespace shadowgraph
