// Has what every call on fake tensors goes through, boxed (fallback.cpp) or unboxed (unboxed_call.h). That is the
// sequence itself (carry_out), the state that a kernel runs under, and the device of its results. Internal to core/.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/dispatch/operator_info.h"
#include "core/fake/dispatch_keys.h"
#include "core/fake/error_translation.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/kernel_depth.h"
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

}  // namespace shadowgraph
