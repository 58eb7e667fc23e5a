// Executes one operator call on fake tensors, boxed.
//
// A user-defined kernel, a shape rule (register_rule) or a fake kernel from another language
// (torch.library.register_fake), is a small program on fake tensors: it sees their simulated devices and chooses the
// device of its results. Its calls are not observed, and autograd is off. libtorch's Meta kernels and built-in rules
// see "meta" instead.
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "core/fake/converter.h"
#include "core/fake/dispatch/call.h"
#include "core/fake/dispatch/contents_of_call.h"
#include "core/fake/dispatch/operand_scan.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/dispatch/run_on_meta.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/storage_context.h"
#include "core/fake/tensors_in_value.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/python_key.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

namespace {

// Returns whether the current call runs a user-defined kernel.
bool runs_user_kernel(const OperatorInfo& info) {
  if (info.rule) return info.rule->sees_devices;
  // The fake kernel may have been registered after `info` was built.
  return info.is_user_defined && (info.route == Route::kMeta || info.route == Route::kNone) &&
         info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta) && has_fake_kernel(info.name);
}

// Returns where operands may be: a user-defined fake kernel decides that itself, unless devices are registered.
DeviceRule device_rule_of(const OperatorInfo& info, bool own_kernel) {
  return own_kernel && !info.rule && !info.devices ? DeviceRule::kFirst : info.device_rule;
}

// Active while a user-defined kernel runs.
class UserKernelScope {
 public:
  explicit UserKernelScope(ModeState* mode)
      : unobserved_(mode),
        kernel_depth_(std::exchange(thread_state.kernel_depth, 0)),
        outer_(std::exchange(thread_state.in_user_kernel, true)),
        keys_(*thread_state.dispatch_keys) {
    // Composites choose their kernels by the simulated device, as in a program.
    thread_state.dispatch_keys->set_excluded(keys_.excluded() - c10::DispatchKeySet(kCompositeKey));
  }

  ~UserKernelScope() {
    close_open_literal();
    *thread_state.dispatch_keys = keys_;
    thread_state.in_user_kernel = outer_;
    thread_state.kernel_depth = kernel_depth_;
  }

  C10_DISABLE_COPY_AND_ASSIGN(UserKernelScope);

 private:
  Unobserved unobserved_;
  uint32_t kernel_depth_;
  bool outer_;
  c10::impl::PODLocalDispatchKeySet keys_;
};

class ResultPlacement {
 public:
  ResultPlacement(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands, c10::Device device,
                  ModeState* mode)
      : info_(info), user_kernel_(own_kernel), operands_(operands), device_(device), mode_(mode) {}

  void place(at::Tensor& result, size_t place, size_t element) const {
    if (!result.defined()) return;
    const std::optional<c10::Device> registered = registered_for(place, element);
    if (const FakeTensorImpl* operand = sharing_storage(result)) {
      // A view is on the device of its base.
      const c10::Device where = operand->simulated_device();
      wrap(result, where);
      check(where, registered, place);
      return;
    }
    if (!is_fake(result) && !result.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::MetaBit)) {
      result = fake_of_real(result, mode_);  // created outside of the mode
    }
    FakeTensorImpl* fake = as_fake(result);
    const bool open = fake == nullptr || fake->is_fresh() || is_meta_of_rule(*fake);
    if (open) {
      const c10::Device where = with_index(registered.value_or(device_));
      check_exists(where, mode_);
      if (fake != nullptr && !fake->is_fresh()) fake->move_to(where);
      wrap(result, where);
    } else {
      check(fake->simulated_device(), registered, place);
    }
    // Its contents are those of the rule, not of the operator.
    forget_contents(storage_of(result));
  }

 private:
  void wrap(at::Tensor& result, c10::Device where) const { wrap_result(result, where, watches_size_reads(mode_)); }

  const FakeTensorImpl* sharing_storage(const at::Tensor& result) const {
    const FakeTensorImpl* found = nullptr;
    for_each_tensor(operands_, 0, info_.tensor_arguments, [&](const at::Tensor& operand) {
      if (found != nullptr || !operand.defined() || !is_fake(operand)) return;
      if (&storage_of(operand) == &storage_of(result)) found = as_fake(operand);
    });
    return found;
  }

  // A C++ rule may leave the device open by creating its result on "meta", as Meta kernels do.
  bool is_meta_of_rule(const FakeTensorImpl& fake) const { return info_.rule && fake.simulated_device().is_meta(); }

  std::optional<c10::Device> registered_for(size_t place, size_t element) const {
    if (!info_.devices || place >= info_.devices->results.size()) return std::nullopt;
    const ResultDevice& result = info_.devices->results[place];
    if (const auto* device = std::get_if<c10::Device>(&result)) return *device;
    const auto position = info_.op.schema().argumentIndexWithName(std::get<std::string>(result));
    const c10::IValue& argument = operands_[static_cast<size_t>(*position)];
    if (argument.isDevice()) return argument.toDevice();
    std::optional<c10::Device> found;
    size_t index = 0;
    for_each_tensor(argument, [&](const at::Tensor& operand) {
      const bool counts = !argument.isList() || index++ == element;
      if (counts && operand.defined() && is_fake(operand)) found = as_fake(operand)->simulated_device();
    });
    return found;
  }

  void check(c10::Device made, const std::optional<c10::Device>& registered, size_t place) const {
    if (!registered || with_index(*registered) == made) return;
    throw Error(c10::str(info_.name, ": result ", place, " is on ", made, " according to its ",
                         user_kernel_ ? "rule or fake kernel" : "operand", ", but on ", with_index(*registered),
                         " according to register_devices; correct one of them"));
  }

  const OperatorInfo& info_;
  bool user_kernel_;
  const torch::jit::Stack& operands_;
  c10::Device device_;
  ModeState* mode_;
};

// Turns the results, on the stack from `results` on, into fakes on their devices, for a call of a user-defined kernel
// or with registered devices. `operands` are its arguments; `device` is the default. Throws Error where kernel and
// registration conflict.
void place_results(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands,
                   torch::jit::Stack& stack, size_t results, c10::Device device, ModeState* mode) {
  const ResultPlacement places(info, own_kernel, operands, device, mode);
  change_results(stack, results,
                 [&](at::Tensor& tensor, size_t result, size_t element) { places.place(tensor, result, element); });
  for (const uint16_t position : info.tensor_arguments) {
    if (!is_in(info.touched_arguments, position)) continue;
    for_each_tensor(operands[position], [](const at::Tensor& operand) {
      if (operand.defined() && is_fake(operand)) forget_contents(storage_of(operand));
    });
  }
}

using torch::jit::Stack;

// Returns the simulated device of the results. Replaces an explicit device argument by "meta", except for a kernel that
// sees devices.
c10::Device result_device(const OperatorInfo& info, const OperandDevices& operands, ModeState* mode, Stack& stack,
                          size_t begin, bool sees_devices) {
  const c10::Device fallback = operands.or_default(mode);
  if (info.device_argument < 0) return fallback;
  c10::IValue& argument = stack[begin + static_cast<size_t>(info.device_argument)];
  c10::Device device = fallback;
  if (argument.isDevice()) {
    device = argument.toDevice();
    if (mode != nullptr && mode->maps_devices()) device = mode->default_device;
  }
  if (sees_devices) {
    if (argument.isDevice()) argument = device;
    return device;
  }
  // Operators that take a device in addition to operands keep None, which means the operand's device.
  if (argument.isDevice() || !operands.known()) argument = c10::Device(c10::DeviceType::Meta);
  return device;
}

void wrap_results(Stack& stack, size_t begin, c10::Device device, const OperandDevices& devices, bool watch) {
  change_results(stack, begin, [&](at::Tensor& tensor, size_t result, size_t element) {
    wrap_result(tensor, stack[begin + result].isList() ? devices.of_slot(element, device) : device, watch);
  });
}

void mark_views_of_real(const Stack& stack, size_t begin) {
  for (size_t i = begin; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [](const at::Tensor& result) {
      if (FakeTensorImpl* fake = as_fake(result)) fake->set_view_of_real();
    });
  }
}

// Returns whether the call computes from host scalars only: real CPU tensors of one element. A TorchScript trace
// converts sizes to such tensors and back, so the call runs for real to keep their values. A tensor allocated like such
// a number (new_empty) has no value and becomes a fake one.
bool uses_only_host_scalars(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (info.writes || info.random || info.lifts || info.tensor_arguments.empty()) return false;
  if (info.target.facts().uninitialized) return false;
  bool any = false;
  bool all = true;
  for_each_tensor(stack, begin, info.tensor_arguments, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    any = true;
    all = all && tensor.unsafeGetTensorImpl()->numel() == 1 && !is_fake(tensor) && tensor.device().is_cpu() &&
          !tensor.requires_grad() && tensor.layout() == c10::Layout::Strided;
  });
  if (info.device_argument >= 0) {
    const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
    if (device.isDevice() && !device.toDevice().is_cpu()) return false;
  }
  return any && all;
}

// Returns whether the operands are plain numbers that never were tensors: torch.div(3, 2). The result is the program's
// first tensor, and therefore fake.
bool uses_only_plain_numbers(const OperatorInfo& info, const Stack& stack, size_t begin) {
  return std::ranges::all_of(info.tensor_arguments, [&](uint16_t position) {
    const c10::IValue& argument = stack[begin + position];
    return argument.isNone() ||
           (argument.isTensor() &&
            (!argument.toTensor().defined() || argument.toTensor().unsafeGetTensorImpl()->is_wrapped_number()));
  });
}

void convert_results_to_fakes(Stack& stack, size_t begin, ModeState* mode) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = fake_of_real(stack[i].toTensor(), mode);
  }
}

void run_for_real(const OperatorInfo& info, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kFakeKey);
  const c10::impl::ExcludeDispatchKeyGuard exclude(kFakeKey);
  info.op.redispatchBoxed(keys & below, stack);
}

// For a mode that reports real calls without changing them.
void observe_real_call(const OperatorInfo& info, c10::DispatchKeySet keys, Stack* stack, CallObserver& observer) {
  observer.begin_call(info, viewed(*stack, stack->size() - info.argument_count));
  try {
    run_for_real(info, keys, stack);
  } catch (...) {
    observer.abandon_call(info);
    throw;
  }
  observer.end_call(info, viewed(*stack, stack->size() - info.return_count));
}

// Returns the persistent mode of an operand; nullptr if there is none.
std::shared_ptr<PersistentMode> persistent_mode_of(const OperatorInfo& info, const Stack& stack) {
  const FindPersistentMode find = find_persistent_mode.load(std::memory_order_acquire);
  if (find == nullptr) return nullptr;
  std::shared_ptr<PersistentMode> found;
  for_each_tensor(stack, stack.size() - info.argument_count, info.tensor_arguments, [&](const at::Tensor& tensor) {
    const FakeTensorImpl* fake = found ? nullptr : as_fake(tensor);
    if (fake != nullptr) found = find(*fake);
  });
  return found;
}

bool has_fake_operand(const OperatorInfo& info, const Stack& stack) {
  bool found = false;
  for_each_tensor(stack, stack.size() - info.argument_count, info.tensor_arguments,
                  [&](const at::Tensor& tensor) { found = found || is_fake(tensor); });
  return found;
}

class PersistentModeScope {
 public:
  explicit PersistentModeScope(PersistentMode& lasting) : lasting_(lasting), outer_(thread_state.mode) {
    thread_state.mode = &lasting.enter();
  }
  ~PersistentModeScope() {
    thread_state.mode = outer_;
    lasting_.leave();
  }
  C10_DISABLE_COPY_AND_ASSIGN(PersistentModeScope);

 private:
  PersistentMode& lasting_;
  ModeState* outer_;
};

// Returns the real tensor that lift_fresh makes a tensor of the program: the values of torch.tensor(list), from_numpy,
// ... Undefined for other calls, and for a tensor that the capture knows from elsewhere.
at::Tensor host_values_of(const OperatorInfo& info, const Stack& stack, ModeState& mode) {
  if (!info.lifts || !info.name.starts_with("aten::lift_fresh") || info.argument_count != 1) return {};
  const at::Tensor& values = stack.back().toTensor();
  const bool plain = values.defined() && !is_fake(values) && values.layout() == c10::Layout::Strided &&
                     !values.is_quantized() && values.has_storage() && values.device().is_cpu();
  if (!plain) return {};
  const std::lock_guard lock(mode.memo_mutex);
  return mode.memo.tensors.contains(values.unsafeGetTensorImpl()) ? at::Tensor() : values;
}

// Suspends size guards on operands that the kernel may resize (resize_, an `out=`).
class UnwatchedOperands {
 public:
  UnwatchedOperands(const OperatorInfo& info, const Stack& stack, size_t begin, const ModeState* mode) {
    if (!info.writes || !watches_size_reads(mode)) return;
    for (const uint16_t position : info.tensor_arguments) {
      if (!is_in(info.written_arguments, position)) continue;
      const c10::IValue& argument = stack[begin + position];
      if (!argument.isTensor()) continue;
      FakeTensorImpl* fake = as_fake(argument.toTensor());
      if (fake != nullptr && fake->stop_watching_size_reads()) unwatched_.push_back(argument.toTensor());
    }
  }
  ~UnwatchedOperands() {
    for (const at::Tensor& tensor : unwatched_) as_fake(tensor)->watch_size_reads();
  }
  C10_DISABLE_COPY_AND_ASSIGN(UnwatchedOperands);

 private:
  c10::SmallVector<at::Tensor, 2> unwatched_;
};

// Returns whether this may be the start of at::tensor({...}): at::empty on the CPU or without a device.
bool may_start_literal(const OperatorInfo& info, const Stack& stack, size_t begin) {
  static const OperatorInfo& empty =
      OperatorInfo::of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format"));
  if (info.key != empty.key) return false;
  const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
  return !device.isDevice() || device.toDevice().is_cpu();
}

// Returns whether the results are in pinned memory: the argument after the device requests it, or the call copies from
// an accelerator without blocking. Throws what libtorch throws if that device cannot have pinned memory.
bool makes_pinned(const OperatorInfo& info, const Stack& stack, size_t begin, c10::Device from, c10::Device to) {
  if (info.device_argument < 0) return false;
  const auto& arguments = info.op.schema().arguments();
  const auto next = static_cast<size_t>(info.device_argument) + 1;
  if (next >= arguments.size() || arguments[next].name() != "pin_memory") return false;
  if (stack[begin + next].isBool() && stack[begin + next].toBool()) {
    TORCH_CHECK(to.is_cpu(), "Cannot pin a tensor on ", to, ", only dense CPU tensors can be pinned");
    TORCH_CHECK(active_fake_mode() == nullptr || simulated_devices_of(c10::DeviceType::CUDA) > 0,
                "Cannot access accelerator device when none is available.");
    return true;
  }
  return info.name == "aten::_to_copy" && to.is_cpu() && at::accelerator::isAccelerator(from.type()) &&
         stack[begin + next + 1].toBool();  // non_blocking
}

// Implements the steps of execute_call for operands and results on a stack.
class BoxedCall {
 public:
  using Result = size_t;  // index of the first result on the stack

  BoxedCall(const OperatorInfo& info, ModeState* mode, Stack& stack)
      : info_(info),
        mode_(mode),
        stack_(stack),
        begin_(stack.size() - info.argument_count),
        user_kernel_(runs_user_kernel(info)),
        scan_(info, mode, device_rule_of(info, user_kernel_)) {}

  void take_operands() {
    scan_.run(stack_, begin_);
    contents_.emplace(info_, stack_, begin_);
    if (C10_UNLIKELY(user_kernel_ || info_.devices != nullptr))
      operands_.assign(stack_.begin() + static_cast<ptrdiff_t>(begin_), stack_.end());
  }
  void show_arguments(CallObserver& observer) const { observer.begin_call(info_, viewed(stack_, begin_)); }
  bool may_start_literal() const { return shadowgraph::may_start_literal(info_, stack_, begin_); }
  c10::Device resolve_device(ModeState* mode) {
    const c10::Device device = result_device(info_, scan_.devices(), mode, stack_, begin_, user_kernel_);
    pinned_ = makes_pinned(info_, stack_, begin_, scan_.devices().or_default(mode), device);
    return device;
  }

  size_t run(c10::Device device) {
    if (contents_->must_run_for_real()) {
      contents_->run_instead(stack_, begin_, device);
      return stack_.size() - info_.return_count;
    }
    const c10::IValue written = info_.bumps_versions ? stack_[begin_] : c10::IValue();
    {
      const UnwatchedOperands unwatched(info_, stack_, begin_, mode_);
      if (C10_UNLIKELY(user_kernel_)) {
        const UserKernelScope scope(mode_);
        run_kernel(info_, &stack_);
      } else if (C10_UNLIKELY(info_.route == Route::kNone && mode_ != nullptr &&
                              mode_->options.allow_fallback_kernels)) {
        run_on_zeros(info_, stack_, begin_, device);
      } else {
        run_on_meta(info_, &stack_);
      }
    }
    if (info_.bumps_versions) {
      for (const c10::IValue& element : written.toListRef()) element.toTensor().unsafeGetTensorImpl()->bump_version();
    }
    return stack_.size() - info_.return_count;
  }

  void wrap(size_t results, c10::Device device, bool watch) {
    if (C10_UNLIKELY(pinned_)) {
      change_results(stack_, results, [](at::Tensor& tensor, size_t, size_t) {
        if (tensor.defined()) storage_context_of(storage_of(tensor)).pinned = true;
      });
    }
    if (contents_->must_run_for_real()) return;  // already fakes, with final sizes
    if (C10_UNLIKELY(user_kernel_ || info_.devices != nullptr)) {
      place_results(info_, user_kernel_, operands_, stack_, results, device, mode_);
    } else {
      wrap_results(stack_, results, device, scan_.devices(), watch);
    }
    if (C10_UNLIKELY(scan_.views_real())) mark_views_of_real(stack_, results);
    contents_->run_after(stack_, results);
  }
  void show_results(CallObserver& observer, size_t results) const { observer.end_call(info_, viewed(stack_, results)); }
  const at::Tensor& fresh(size_t results) const { return stack_[results].toTensor(); }

 private:
  const OperatorInfo& info_;
  ModeState* mode_;
  Stack& stack_;
  size_t begin_;
  bool user_kernel_;  // runs a user-defined kernel
  bool pinned_ = false;
  Stack operands_;  // filled only if user_kernel_, or if devices are registered
  OperandScan scan_;
  std::optional<ContentsOfCall> contents_;
};

}  // namespace

bool runs_directly(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (!info.direct_on_cpu) return false;
  const at::Tensor& self = stack[begin].toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  const c10::Device device = fake != nullptr ? fake->simulated_device() : self.device();
  return device.is_cpu() && !(self.requires_grad() && c10::GradMode::is_enabled()) && !self._fw_grad(0).defined();
}

void open_if_literal(const at::Tensor& fresh) {
  if (fresh.unsafeGetTensorImpl()->numel() != 0 && as_fake(fresh)->rank() == 1) open_for_literal(fresh);
}

namespace {

void run_fake_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const OperatorInfo& info = OperatorInfo::of(op);
  if (thread_state.kernel_depth != 0) {
    run_on_meta(info, stack);
    return;
  }
  if (C10_UNLIKELY(info.marks_for_profiler)) {
    run_for_real(info, keys, stack);
    return;
  }
  close_open_literal();
  ModeState* mode = thread_state.mode;
  CallObserver* observer = mode != nullptr ? mode->observer : nullptr;
  if (mode != nullptr && mode->kind == ModeKind::kObserve) {
    observe_real_call(info, keys, stack, *observer);
    return;
  }
  if (may_have_persistent_mode(mode)) {
    if (const auto lasting = persistent_mode_of(info, *stack)) {
      const PersistentModeScope scope(*lasting);
      run_fake_call(op, keys, stack);
      return;
    }
    if (!has_fake_operand(info, *stack)) {
      // They were deferred views of materialized storages, and are real now. Their device may have changed, too.
      const c10::impl::ExcludeDispatchKeyGuard exclude(kFakeKey);
      const at::AutoDispatchBelowADInplaceOrView below;
      info.op.callBoxed(stack);
      return;
    }
  }
  if (C10_UNLIKELY(thread_state.lazy_output != nullptr)) {
    if (const at::Tensor lazy = take_lazy_output(info, *stack); lazy.defined()) {
      run_fake_call(op, keys, stack);
      resize_like(lazy, stack->back().toTensor());
      return;
    }
  }
  const size_t begin = stack->size() - info.argument_count;
  if (info.route == Route::kComposite || (info.direct_on_cpu && !runs_directly(info, *stack, begin))) {
    // Reached when autograd is skipped (inference mode), and by out= forms without an autograd kernel. The
    // decomposition makes separate calls.
    const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    op.callBoxedForDispatchKey(
        implicit ? c10::DispatchKey::CompositeImplicitAutograd : c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }

  if (C10_UNLIKELY(info.lifts) && observer != nullptr && mode->reads_data) {
    const at::Tensor values = host_values_of(info, *stack, *mode);
    if (values.defined() && values.storage().resizable()) {  // a literal, not the memory of an array
      stack->back() = fake_of_real(values, mode).clone();
      return;
    }
  }
  if (!keys.has(c10::DispatchKey::CUDA) && uses_only_host_scalars(info, *stack, begin)) {
    const bool plain = mode != nullptr && uses_only_plain_numbers(info, *stack, begin);
    if (plain || mode == nullptr || mode->real_tensors() != RealTensors::kRefuse) {
      run_for_real(info, keys, stack);
      if (plain) convert_results_to_fakes(*stack, stack->size() - info.return_count, mode);
      return;
    }
  }
  if (mode != nullptr && mode->reads_data && info.depends_on_data && observer != nullptr &&
      observer->compute(info, *stack))
    return;
  if (C10_UNLIKELY(info.lifts) && observer != nullptr && !mode->reads_data) {
    if (const at::Tensor values = host_values_of(info, *stack, *mode); values.defined()) {
      // A tensor that is allocated here and freed with the program's reference, not a constant that exists throughout.
      const at::Tensor lifted = at::empty_strided(values.sizes(), values.strides(), values.options());
      copy_contents_if_kept(lifted, values, *mode);
      observer->host_wrote(lifted, values);
      stack->back() = lifted;
      return;
    }
  }
  BoxedCall call(info, mode, *stack);
  execute_call(info, mode, call);
}

}  // namespace

void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (is_first_for_python(kFakeKey, keys)) return run_by_python(kFakeKey, op, stack);
  try {
    run_fake_call(op, keys, stack);
  } catch (const Error& error) {
    if (thread_state.kernel_depth == 0) translate(error);
    throw;
  }
}

}  // namespace shadowgraph
