// The steps common to every call on fake tensors, boxed (fallback.cpp) or unboxed (unboxed_call.h): the sequence
// (execute_call), the state that a kernel runs under, and the device of its results. Internal to core/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/fake/dispatch/operator_info.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {

// Active while a kernel runs: fake tensors report "meta", autograd and composite interception are off. Calls that the
// kernel makes on intermediate (plain meta) tensors are still dispatched to the fake key, even outside any mode.
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
  C10_DISABLE_COPY_AND_ASSIGN(KernelScope);

 private:
  static constexpr c10::DispatchKeySet kExcluded =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(kCompositeKey);
  ThreadState& state_;
  c10::Device saved_device_;
  c10::impl::PODLocalDispatchKeySet saved_keys_;
  KernelDepth depth_;
};

// Finds the common device of a call's operands. Mixed devices are checked in fallback.cpp.
class CommonDevice {
 public:
  void see(const FakeTensorImpl& fake) {
    const c10::Device device = fake.simulated_device();
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
  // The common device, or the mode's default device without operands.
  c10::Device or_default(const ModeState* mode) const {
    return known_ ? device_ : mode != nullptr ? mode->default_device : c10::Device(c10::kCPU);
  }

 private:
  c10::Device device_ = c10::Device(c10::kCPU);
  bool known_ = false;
  bool mixed_ = false;
};

// Turns a kernel's result into a fake tensor on `device`, unless it is undefined or already one (an operand, or created
// by a rule). Reads of its sizes are watched only from here on, because kernels may still set them.
inline void wrap_result(at::Tensor& result, c10::Device device, bool watch) {
  if (!result.defined()) return;
  FakeTensorImpl* fake = as_fake(result.unsafeGetTensorImpl());
  if (fake == nullptr) {
    result = FakeTensorImpl::wrap(*result.unsafeGetTensorImpl(), device);
    if (watch) static_cast<FakeTensorImpl*>(result.unsafeGetTensorImpl())->watch_size_reads();
  } else if (fake->take_fresh()) {
    if (C10_UNLIKELY(fake->simulated_device() != device)) fake->move_to(device);
    if (watch) fake->watch_size_reads();
  }
}

// Starts collecting a literal if `fresh` may be the tensor allocated by at::tensor({...}).
void open_if_literal(const at::Tensor& fresh);

// Reports a composite call to the mode's observer, if any, for the duration of the call.
class CompositeScope {
 public:
  CompositeScope(CallObserver* observer, const OperatorInfo& info, std::span<const CallArgument> arguments)
      : observer_(observer) {
    if (observer_ != nullptr) observer_->enter_composite(info, arguments);
  }
  ~CompositeScope() {
    if (observer_ != nullptr) observer_->leave_composite();
  }
  C10_DISABLE_COPY_AND_ASSIGN(CompositeScope);

 private:
  CallObserver* observer_;
};

inline bool watches_size_reads(const ModeState* mode) { return mode != nullptr && mode->watch_size_reads; }

// Returns whether the program itself, not a kernel, makes composite calls: they are then reported, and may be replaced
// by a rule.
inline bool reports_composites(const ModeState* mode) {
  return mode != nullptr && mode->kind == ModeKind::kFake && thread_state.kernel_depth == 0;
}

// Executes one call of the program, from operands to results. `call` gives access to them:
//
//   Result                          the type that run() returns
//   take_operands()                 converts real operands to fakes; forgets contents that the call makes unknown
//   show_arguments(observer)        calls begin_call
//   may_start_literal()             whether at::tensor({...}) may be about to write into the result
//   resolve_device(mode)            the simulated device of the results; replaces an explicit device argument by "meta"
//   run(device)                     rule | decomposition | C++ Meta kernel
//   wrap(result, device, watch)     turns the results into fakes on that device
//   show_results(observer, result)  calls end_call
//   fresh(result)                   the new tensor that may_start_literal() refers to
template <class Call>
C10_ALWAYS_INLINE typename Call::Result execute_call(const OperatorInfo& info, ModeState* mode, Call& call) {
  const KernelScope kernel;
  CallObserver* observer = nullptr;  // set once it has seen the arguments
  try {
    call.take_operands();
    if (mode != nullptr && mode->observer != nullptr) {
      call.show_arguments(*mode->observer);
      observer = mode->observer;
    }
    const bool may_hold_literal = call.may_start_literal();
    const c10::Device device = with_index(call.resolve_device(mode));
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

// The boxed kernel of kFakeKey, for every operator with a fake operand, or while a mode includes the key. Calls made by
// a kernel arrive there with kernel_depth > 0; they run on meta and are part of the outer call.
void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Returns whether an operator that is direct on the CPU runs as a single CPU kernel in this call.
bool runs_directly(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin);

// The boxed kernel of kCompositeKey, for CompositeImplicitAutograd operators: reports the call to the observer, then
// rejects it, runs its rule or decomposes it.
void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Returns whether the operator's composite rule replaces its decomposition for tensors on `device` in a mode: on CUDA,
// for attention on XPU and MPS, and for LSTMs on a CPU profile other than this machine's.
bool composite_rule_applies(const OperatorInfo& info, c10::DeviceType device);

// Returns whether calls of this composite operator are reported; metadata queries are not.
bool is_reported_as_region(const c10::OperatorHandle& op);

// Operators that resize and write a lazy conjugate or negative view. libtorch makes them write to a clone, resizes the
// view to the clone's new sizes, and copies back (aten/src/ATen/native/MathBitsFallback.h). That resize calls the CPU
// kernel directly, past the dispatcher: a fake tensor would get real memory, and a recorder would miss the call.
//
//     add.out(%0, %1, out=%2.conj())     %3 = clone(%2.conj())
//                                        add.out(%0, %1, out=%3)
//                                        resize_(%2.conj(), ..)      through the dispatcher, if %3 was resized
//                                        copy_(%2.conj(), %3)

// Returns whether the operator may resize its output; if so, it has lazy_output_kernel on kCompositeKey.
bool may_resize_output(const c10::OperatorHandle& op);
void lazy_output_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The lazy view that the current call writes, identified by the operator and the argument's position. Stored in
// ThreadState::lazy_output.
struct LazyOutput {
  const void* op;  // OperatorInfo::key
  size_t position;
  at::Tensor tensor;
};

// Returns, once, the lazy view behind the clone on `stack` that `info` is about to write; undefined if there is none.
at::Tensor take_lazy_output(const OperatorInfo& info, const torch::jit::Stack& stack);
// Resizes `lazy` by aten::resize_, below autograd.
void resize_like(const at::Tensor& lazy, const at::Tensor& clone);

}  // namespace shadowgraph
