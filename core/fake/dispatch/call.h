// Has what every call on fake tensors goes through, boxed (fallback.cpp) or unboxed (unboxed_call.h). That is the
// sequence itself (carry_out), the state that a kernel runs under, and the device of its results. Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/pretended_devices.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {

// While this lives a kernel is running: fakes answer "meta", autograd and composite interception are off. Calls that
// the kernel makes on intermediate (plain meta) tensors come back to the fake key, also outside any mode.
class KernelScope {
 public:
  KernelScope() : state_(thread_state), saved_device_(state_.kernel_device()) {
    if (state_.dispatch_keys == nullptr) state_.dispatch_keys = &c10::impl::raw_local_dispatch_key_set;
    saved_keys_ = *state_.dispatch_keys;
    state_.dispatch_keys->set_included(saved_keys_.included() | c10::DispatchKeySet(kFakeKey));
    state_.dispatch_keys->set_excluded(saved_keys_.excluded() | kExcluded);
  }
  ~KernelScope() {
    state_.set_kernel_device(saved_device_);
    *state_.dispatch_keys = saved_keys_;
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  static constexpr c10::DispatchKeySet kExcluded =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(kCompositeKey);
  ThreadState& state_;
  c10::Device saved_device_;
  c10::impl::PODLocalDispatchKeySet saved_keys_;
  KernelDepth depth_;
};

// Finds the device that a call's operands agree on. If they do not agree, fallback.cpp judges.
class CommonDevice {
 public:
  void see(const FakeTensorImpl& fake) {
    const c10::Device device = fake.pretended_device();
    if (!known_) {
      known_ = true;
      device_ = device;
    } else if (device != device_) {
      mixed_ = true;
    }
  }
  bool known() const { return known_; }
  bool is_mixed() const { return mixed_; }
  c10::Device value() const { return device_; }
  // Without operands it is the mode's default device.
  c10::Device or_default(const ModeState* mode) const {
    return known_ ? device_ : mode != nullptr ? mode->default_device : c10::Device(c10::kCPU);
  }

 private:
  c10::Device device_ = c10::Device(c10::kCPU);
  bool known_ = false;
  bool mixed_ = false;
};

// Makes a kernel's result a fake on `device`, unless it is undefined or a fake already: an operand, or made by a rule.
// Only now are reads of its sizes watched: a kernel may still have to set them.
inline void wrap_result(at::Tensor& result, c10::Device device, bool watch) {
  if (!result.defined()) return;
  FakeTensorImpl* fake = as_fake(result.unsafeGetTensorImpl());
  if (fake == nullptr) {
    result = FakeTensorImpl::wrap(*result.unsafeGetTensorImpl(), device);
    if (watch) static_cast<FakeTensorImpl*>(result.unsafeGetTensorImpl())->watch_size_reads();
  } else if (fake->take_fresh()) {
    if (C10_UNLIKELY(fake->pretended_device() != device)) fake->move_to(device);
    if (watch) fake->watch_size_reads();
  }
}

// Opens a literal if at::tensor({...}) may have asked for `fresh`.
void open_if_literal(const at::Tensor& fresh);

// Shows a composite call, from its start to its end, to the mode's observer, if it has one.
class CompositeScope {
 public:
  CompositeScope(CallObserver* observer, const OperatorInfo& info, std::span<const CallArgument> arguments)
      : observer_(observer) {
    if (observer_ != nullptr) observer_->enter_composite(info, arguments);
  }
  ~CompositeScope() {
    if (observer_ != nullptr) observer_->leave_composite();
  }
  CompositeScope(const CompositeScope&) = delete;
  CompositeScope& operator=(const CompositeScope&) = delete;

 private:
  CallObserver* observer_;
};

inline bool watches_size_reads(const ModeState* mode) { return mode != nullptr && mode->watch_size_reads; }

// Says whether a composite call is the program's own and not part of a kernel: it is then shown, and perhaps replaced
// by a rule.
inline bool takes_composites(const ModeState* mode) {
  return mode != nullptr && mode->kind == ModeKind::kFake && thread_state.kernel_depth == 0;
}

// One call that the program made, from its operands to its results. `call` knows where they lie:
//
//   Result                   what run() gives and the others are handed
//   take_operands()          real operands become fakes; contents that the call makes unknown are forgotten
//   show_arguments(observer) begin_call
//   makes_room_for_literal() whether at::tensor({...}) may be about to write into the result
//   take_device(mode)        where the results will pretend to be; leaves "meta" in an explicit device argument
//   run(device)              rule | decomposition | C++ Meta kernel
//   wrap(result, device, watch)  results become fakes on that device
//   show_results(observer, result)  end_call
//   fresh(result)            the new tensor that makes_room_for_literal() was about
template <class Call>
C10_ALWAYS_INLINE typename Call::Result carry_out(const OperatorInfo& info, ModeState* mode, Call& call) {
  const KernelScope kernel;
  CallObserver* observer = nullptr;  // once it has seen the arguments
  try {
    call.take_operands();
    if (mode != nullptr && mode->observer != nullptr) {
      call.show_arguments(*mode->observer);
      observer = mode->observer;
    }
    const bool may_hold_literal = call.makes_room_for_literal();
    const c10::Device device = with_index(call.take_device(mode));
    check_exists(device, mode);
    thread_state.set_kernel_device(device);
    typename Call::Result result = call.run(device);
    call.wrap(result, device, watches_size_reads(mode));
    if (observer != nullptr) call.show_results(*observer, result);
    if (may_hold_literal) open_if_literal(call.fresh(result));
    return result;
  } catch (const Error& error) {
    if (observer != nullptr) observer->abandon_call(info);
    translate(error);
    throw;
  } catch (...) {
    if (observer != nullptr) observer->abandon_call(info);
    throw;
  }
}

// Declares the boxed kernel that carries fake tensors. Internal to core/.

// Runs on kFakeKey, for every operator with a fake operand, or with the key included by a mode.
void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Says whether a call of an operator that is direct on the CPU is one kernel of the CPU's.
bool runs_directly(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);

// Declares what happens to composite operators before they decompose: they are shown, refused or replaced by a rule.

// Runs on kCompositeKey, for CompositeImplicitAutograd operators: shows the call to the observer, then decomposes it.
void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Says whether the operator's composite rule runs in place of its decomposition for tensors on `device`, in a mode. It
// does on CUDA, for attention on XPU and MPS, and for LSTMs on a CPU that is not this machine's.
bool composite_rule_replaces(const OperatorInfo& info, c10::DeviceType device);

// Says whether calls of this composite operator are shown: not those that only ask for metadata.
bool is_worth_a_region(const c10::OperatorHandle& op);

// Handles operators that write to a lazy conjugate or negative, and resize it. libtorch gives them a clone to write to,
// resizes the tensor to what became of the clone, and copies back (aten/src/ATen/native/MathBitsFallback.h). That
// resize calls the CPU's kernel, past the dispatcher. A fake would get a storage of real memory, and a recorder would
// not hear of it.
//
//     add.out(%0, %1, out=%2.conj())     %3 = clone(%2.conj())
//                                        add.out(%0, %1, out=%3)
//                                        resize_(%2.conj(), ..)      what is done here, by the operator, if %3 was resized
//                                        copy_(%2.conj(), %3)
//
// Internal to core/.

// Says whether calls of this operator may resize what they write: those have lazy_output_kernel on kCompositeKey.
bool may_resize_output(const c10::OperatorHandle& op);
void lazy_output_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The lazy tensor that a call under way writes, by the operator and the position of its argument.
// ThreadState::lazy_output holds it.
struct LazyOutput {
  const void* op;  // OperatorInfo::key
  size_t position;
  at::Tensor tensor;
};

// Returns the tensor behind the clone on `stack` that `info` is about to write, once; undefined if there is none.
at::Tensor take_lazy_output(const OperatorInfo& info, const torch::jit::Stack& stack);
// Resizes by aten::resize_, below autograd.
void resize_like(const at::Tensor& lazy, const at::Tensor& clone);

}  // namespace shadowgraph
