// This thread's view of fake tensors: which mode is active, and whether a kernel is running right now.
//
// Read on every operator call and on every device() of a fake tensor, hence one plain thread-local record with the
// initial-exec model (one load, no call).
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace c10 {
struct TensorImpl;
}

namespace shadowgraph {

struct ModeState;
class CallObserver;

struct ThreadState {
  // > 0 while a Meta kernel or a rule runs: fake tensors then answer "meta" for their device, and inner calls are part
  // of the outer operator.
  uint32_t kernel_depth = 0;
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

  c10::Device kernel_device() const { return {kernel_device_type, kernel_device_index}; }
  void set_kernel_device(c10::Device device) {
    kernel_device_type = device.type();
    kernel_device_index = device.index();
  }
};

extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

}  // namespace shadowgraph
