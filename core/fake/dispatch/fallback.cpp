// Runs kernels that describe a user's operator: shape rules (register_rule) and fake kernels of other languages
// (torch.library.register_fake). Internal to core/.
//
// Such a kernel is a small program on fake tensors. Their devices are the pretended ones, for it may ask, and its results
// are where it makes them. Nobody watches its calls, and autograd is off. libtorch's own Meta kernels and built-in rules
// see "meta" instead.
#include <ATen/core/stack.h>
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
#include "core/fake/pretended_devices.h"
#include "core/fake/tensors_in_value.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/python_key.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

// Says whether the call that begins now is carried out by such a kernel.
bool runs_own_kernel(const OperatorInfo& info);

// Returns where its operands may be: a fake kernel of another language says that itself, unless something is registered.
DeviceRule device_rule_of(const OperatorInfo& info, bool own_kernel);

// Makes the results, on the stack from `results` on, fakes where they belong. The call is one that such a kernel carried
// out, or one whose devices are registered. `operands` are its arguments. `device` is for results of which nobody says
// anything. Throws Error where kernel and registration disagree.
void place_results(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands,
                   torch::jit::Stack& stack, size_t results, c10::Device device, ModeState* mode);

// How a kernel of the user's own runs, and where its results are.

bool runs_own_kernel(const OperatorInfo& info) {
  if (info.rule) return info.rule->sees_devices;
  // It may have been registered since.
  return info.is_own && (info.route == Route::kMeta || info.route == Route::kNone) &&
         info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta) && has_fake_kernel(info.name);
}

DeviceRule device_rule_of(const OperatorInfo& info, bool own_kernel) {
  return own_kernel && !info.rule && !info.devices ? DeviceRule::kFirst : info.device_rule;
}

// While it lives, calls are the kernel's.
class OwnKernelScope {
 public:
  explicit OwnKernelScope(ModeState* mode)
      : unobserved_(mode),
        kernel_depth_(std::exchange(thread_state.kernel_depth, 0)),
        outer_(std::exchange(thread_state.in_own_kernel, true)),
        keys_(*thread_state.dispatch_keys) {
    // Composites choose their kernels by the pretended device, as in a program.
    thread_state.dispatch_keys->set_excluded(keys_.excluded() - c10::DispatchKeySet(kCompositeKey));
  }

  ~OwnKernelScope() {
    close_open_literal();
    *thread_state.dispatch_keys = keys_;
    thread_state.in_own_kernel = outer_;
    thread_state.kernel_depth = kernel_depth_;
  }

  OwnKernelScope(const OwnKernelScope&) = delete;
  OwnKernelScope& operator=(const OwnKernelScope&) = delete;

 private:
  Unobserved unobserved_;
  uint32_t kernel_depth_;
  bool outer_;
  c10::impl::PODLocalDispatchKeySet keys_;
};

namespace {

class ResultPlaces {
 public:
  ResultPlaces(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands, c10::Device device,
               ModeState* mode)
      : info_(info), own_kernel_(own_kernel), operands_(operands), device_(device), mode_(mode) {}

  void place(at::Tensor& result, size_t place, size_t element) const {
    if (!result.defined()) return;
    const std::optional<c10::Device> registered = registered_for(place, element);
    if (const FakeTensorImpl* operand = sharing_storage(result)) {
      // A view is where its base is.
      const c10::Device where = operand->pretended_device();
      wrap(result, where);
      check(where, registered, place);
      return;
    }
    if (!is_fake(result) && !result.unsafeGetTensorImpl()->key_set().has_backend(c10::BackendComponent::MetaBit)) {
      result = fake_of_real(result, mode_);  // made outside of the mode
    }
    FakeTensorImpl* fake = as_fake(result);
    const bool open = fake == nullptr || fake->is_fresh() || is_meta_of_rule(*fake);
    if (open) {
      const c10::Device where = with_index(registered.value_or(device_));
      check_exists(where, mode_);
      if (fake != nullptr && !fake->is_fresh()) fake->move_to(where);
      wrap(result, where);
    } else {
      check(fake->pretended_device(), registered, place);
    }
    // Its numbers are those of the kernel, not of the operator.
    forget_contents(storage_of(result));
  }

 private:
  void wrap(at::Tensor& result, c10::Device where) const { wrap_result(result, where, watches_size_reads(mode_)); }

  const FakeTensorImpl* sharing_storage(const at::Tensor& result) const {
    const FakeTensorImpl* found = nullptr;
    for (const uint16_t position : info_.tensor_arguments) {
      for_each_tensor(operands_[position], [&](const at::Tensor& operand) {
        if (found != nullptr || !operand.defined() || !is_fake(operand)) return;
        if (&storage_of(operand) == &storage_of(result)) found = as_fake(operand);
      });
    }
    return found;
  }

  // A rule in C++ may leave the device open by making its result on "meta", as Meta kernels do.
  bool is_meta_of_rule(const FakeTensorImpl& fake) const { return info_.rule && fake.pretended_device().is_meta(); }

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
      if (counts && operand.defined() && is_fake(operand)) found = as_fake(operand)->pretended_device();
    });
    return found;
  }

  void check(c10::Device made, const std::optional<c10::Device>& registered, size_t place) const {
    if (!registered || with_index(*registered) == made) return;
    throw Error(c10::str(info_.name, ": result ", place, " is on ", made, " as its ",
                         own_kernel_ ? "rule or fake kernel makes it" : "operand is", ", and on ",
                         with_index(*registered), " by register_devices; correct one of them"));
  }

  const OperatorInfo& info_;
  bool own_kernel_;
  const torch::jit::Stack& operands_;
  c10::Device device_;
  ModeState* mode_;
};

}  // namespace

void place_results(const OperatorInfo& info, bool own_kernel, const torch::jit::Stack& operands,
                   torch::jit::Stack& stack, size_t results, c10::Device device, ModeState* mode) {
  const ResultPlaces places(info, own_kernel, operands, device, mode);
  change_results(stack, results,
                 [&](at::Tensor& tensor, size_t result, size_t element) { places.place(tensor, result, element); });
  for (const uint16_t position : info.tensor_arguments) {
    if (!is_in(info.touched_arguments, position)) continue;
    for_each_tensor(operands[position], [](const at::Tensor& operand) {
      if (operand.defined() && is_fake(operand)) forget_contents(storage_of(operand));
    });
  }
}

// Carries out one call of an operator on fake tensors, boxed. Its steps are carry_out's (call.h):
//
//   program -> autograd, ... -> fake_fallback
//                                 take_operands   real operands replaced by fakes (the mode's memo)
//                                 show_arguments  observer: begin_call
//                                 take_device     from the operands and the operator's device rule
//                                 run             rule | decomposition | C++ Meta kernel, with fakes answering "meta"
//                                 wrap            results as fakes on that device
//                                 show_results    observer: end_call
//
// Calls made by a kernel come back here with kernel_depth > 0; they run on meta and are part of the outer call.

namespace {

using torch::jit::Stack;

// Returns the device that results will pretend to be on. Leaves "meta" in an explicit device argument.
// Leaves it as it is for a kernel that sees devices.
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
  // This is not for operators that merely accept a device beside their operand: None keeps meaning "the operand's".
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

// Says whether the call computes from host scalars alone: real CPU tensors of one element. A TorchScript trace turns
// sizes into such tensors and back. Those keep their values, so the call runs for real. A tensor that is allocated like
// such a number (new_empty) has no value: it is the program's first tensor of its own.
bool computes_on_host_scalars(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (info.writes || info.random || info.lifts || info.tensor_arguments.empty()) return false;
  if (info.target.facts().uninitialised) return false;
  bool any = false;
  bool all = true;
  for (const uint16_t position : info.tensor_arguments) {
    for_each_tensor(stack[begin + position], [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      any = true;
      all = all && tensor.unsafeGetTensorImpl()->numel() == 1 && !is_fake(tensor) && tensor.device().is_cpu() &&
            !tensor.requires_grad() && tensor.layout() == c10::Layout::Strided;
    });
  }
  if (info.device_argument >= 0) {
    const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
    if (device.isDevice() && !device.toDevice().is_cpu()) return false;
  }
  return any && all;
}

// Says whether such a call is on numbers that the program never had as tensors: torch.div(3, 2). Its result is the
// program's first tensor, and so a fake one.
bool computes_on_plain_numbers(const OperatorInfo& info, const Stack& stack, size_t begin) {
  return std::ranges::all_of(info.tensor_arguments, [&](uint16_t position) {
    const c10::IValue& argument = stack[begin + position];
    return argument.isNone() ||
           (argument.isTensor() &&
            (!argument.toTensor().defined() || argument.toTensor().unsafeGetTensorImpl()->is_wrapped_number()));
  });
}

void make_results_fake(Stack& stack, size_t begin, ModeState* mode) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = fake_of_real(stack[i].toTensor(), mode);
  }
}

void run_for_real(const OperatorInfo& info, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kFakeKey);
  const c10::impl::ExcludeDispatchKeyGuard exclude(kFakeKey);
  info.op.redispatchBoxed(keys & below, stack);
}

// Serves a mode that shows real calls without changing them.
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

// Returns the lasting mode of an operand, if one has one.
std::shared_ptr<LastingMode> lasting_mode_of(const OperatorInfo& info, const Stack& stack) {
  const FindLastingMode find = find_lasting_mode.load(std::memory_order_acquire);
  if (find == nullptr) return nullptr;
  std::shared_ptr<LastingMode> found;
  for (const uint16_t position : info.tensor_arguments) {
    for_each_tensor(stack[stack.size() - info.argument_count + position], [&](const at::Tensor& tensor) {
      const FakeTensorImpl* fake = found ? nullptr : as_fake(tensor);
      if (fake != nullptr) found = find(*fake);
    });
  }
  return found;
}

class LastingScope {
 public:
  explicit LastingScope(LastingMode& lasting) : lasting_(lasting), outer_(thread_state.mode) {
    thread_state.mode = &lasting.enter();
  }
  ~LastingScope() {
    thread_state.mode = outer_;
    lasting_.leave();
  }
  LastingScope(const LastingScope&) = delete;
  LastingScope& operator=(const LastingScope&) = delete;

 private:
  LastingMode& lasting_;
  ModeState* outer_;
};

// Stops watching operands that the kernel may resize (resize_, an `out=`) while it runs.
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
  UnwatchedOperands(const UnwatchedOperands&) = delete;
  UnwatchedOperands& operator=(const UnwatchedOperands&) = delete;

 private:
  c10::SmallVector<at::Tensor, 2> unwatched_;
};

// Says whether this may begin at::tensor({...}): at::empty on the CPU, or where nobody names a device.
bool makes_room_for_literal(const OperatorInfo& info, const Stack& stack, size_t begin) {
  static const OperatorInfo& empty =
      OperatorInfo::of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format"));
  if (info.key != empty.key) return false;
  const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
  return !device.isDevice() || device.toDevice().is_cpu();
}

// The steps of a call whose operands and results are on a stack.
class BoxedCall {
 public:
  using Result = size_t;  // where the results begin on the stack

  BoxedCall(const OperatorInfo& info, ModeState* mode, Stack& stack)
      : info_(info),
        mode_(mode),
        stack_(stack),
        begin_(stack.size() - info.argument_count),
        own_kernel_(runs_own_kernel(info)),
        scan_(info, mode, device_rule_of(info, own_kernel_)) {}

  void take_operands() {
    scan_.run(stack_, begin_);
    contents_.emplace(info_, stack_, begin_);
    if (C10_UNLIKELY(own_kernel_ || info_.devices != nullptr))
      operands_.assign(stack_.begin() + static_cast<ptrdiff_t>(begin_), stack_.end());
  }
  void show_arguments(CallObserver& observer) const { observer.begin_call(info_, viewed(stack_, begin_)); }
  bool makes_room_for_literal() const { return shadowgraph::makes_room_for_literal(info_, stack_, begin_); }
  c10::Device take_device(ModeState* mode) {
    return result_device(info_, scan_.devices(), mode, stack_, begin_, own_kernel_);
  }

  size_t run(c10::Device device) {
    if (contents_->decides_results()) {
      contents_->run_instead(stack_, begin_, device);
      return stack_.size() - info_.return_count;
    }
    const c10::IValue written = info_.counts_writes ? stack_[begin_] : c10::IValue();
    {
      const UnwatchedOperands unwatched(info_, stack_, begin_, mode_);
      if (C10_UNLIKELY(own_kernel_)) {
        const OwnKernelScope scope(mode_);
        run_kernel(info_, &stack_);
      } else if (C10_UNLIKELY(info_.route == Route::kNone && mode_ != nullptr &&
                              mode_->options.unknown_operators_on_zeros)) {
        run_on_zeros(info_, stack_, begin_, device);
      } else {
        run_on_meta(info_, &stack_);
      }
    }
    if (info_.counts_writes) {
      for (const c10::IValue& element : written.toListRef()) element.toTensor().unsafeGetTensorImpl()->bump_version();
    }
    return stack_.size() - info_.return_count;
  }

  void wrap(size_t results, c10::Device device, bool watch) {
    if (contents_->decides_results()) return;  // they are fakes, and their sizes are known for good
    if (C10_UNLIKELY(own_kernel_ || info_.devices != nullptr)) {
      place_results(info_, own_kernel_, operands_, stack_, results, device, mode_);
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
  bool own_kernel_;  // one that describes a user's operator carries it out
  Stack operands_;   // of such a call, or of one whose devices are registered
  OperandScan scan_;
  std::optional<ContentsOfCall> contents_;
};

}  // namespace

bool runs_directly(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (!info.direct_on_cpu) return false;
  const at::Tensor& self = stack[begin].toTensor();
  const FakeTensorImpl* fake = as_fake(self);
  const c10::Device device = fake != nullptr ? fake->pretended_device() : self.device();
  return device.is_cpu() && !(self.requires_grad() && c10::GradMode::is_enabled());
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
  if (may_have_lasting_mode(mode)) {
    if (const auto lasting = lasting_mode_of(info, *stack)) {
      const LastingScope scope(*lasting);
      run_fake_call(op, keys, stack);
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
    // This is reached when autograd is skipped (inference mode), and by out= forms that autograd does not know. The
    // parts are calls of their own.
    const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    op.callBoxedForDispatchKey(
        implicit ? c10::DispatchKey::CompositeImplicitAutograd : c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }

  if (!keys.has(c10::DispatchKey::CUDA) && computes_on_host_scalars(info, *stack, begin)) {
    const bool plain = mode != nullptr && computes_on_plain_numbers(info, *stack, begin);
    if (plain || mode == nullptr || mode->real_tensors() != RealTensors::kRefuse) {
      run_for_real(info, keys, stack);
      if (plain) make_results_fake(*stack, stack->size() - info.return_count, mode);
      return;
    }
  }
  if (mode != nullptr && mode->reads_data && info.depends_on_data && observer != nullptr &&
      observer->compute(info, *stack))
    return;
  BoxedCall call(info, mode, *stack);
  carry_out(info, mode, call);
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
