// Runs kernels that describe a user's operator: shape rules (register_rule) and fake kernels of other languages
// (torch.library.register_fake). Internal to core/.
//
// Such a kernel is a small program on fake tensors. Their devices are the pretended ones, for it may ask, and its results
// are where it makes them. Nobody watches its calls, and autograd is off. libtorch's own Meta kernels and built-in rules
// see "meta" instead.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/dispatch/operand_scan.h"
#include "core/dispatch/operator_info.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

// Says whether the call that begins now is carried out by such a kernel.
bool runs_own_kernel(const OperatorInfo& info);

// Returns where its operands may be: a fake kernel of another language says that itself, unless something is registered.
DeviceRule device_rule_of(const OperatorInfo& info, bool own_kernel);

// While it lives, calls are the kernel's.
class OwnKernelScope {
 public:
  explicit OwnKernelScope(ModeState* mode);
  ~OwnKernelScope();
  OwnKernelScope(const OwnKernelScope&) = delete;
  OwnKernelScope& operator=(const OwnKernelScope&) = delete;

 private:
  ModeState* mode_;
  CallObserver* observer_ = nullptr;
  SavedTensorObserver* saved_tensors_ = nullptr;
  uint32_t kernel_depth_;
  bool outer_;
  c10::impl::PODLocalDispatchKeySet keys_;
};

// Makes the results, on the stack from `results` on, fakes where they belong. The call is one that such a kernel carried
// out, or one whose devices are registered. `operands` are its arguments. `device` is for results of which nobody says
// anything. Throws Error where kernel and registration disagree.
void place_results(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands,
                   torch::jit::Stack& stack, size_t results, c10::Device device, ModeState* mode);

}  // namespace shadowgraph
