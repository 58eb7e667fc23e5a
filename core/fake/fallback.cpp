// One call of an operator on fake tensors:
//
//   program -> autograd, ... -> fake_fallback
//                                 device of the result, from the operands and the operator's device rule
//                                 real operands replaced by fakes (the mode's memo)
//                                 observer: begin_call
//                                 rule | decomposition | C++ Meta kernel, with fakes answering "meta"
//                                 results wrapped as fakes on that device
//                                 observer: end_call
//
// Calls made by a kernel come back here with kernel_depth > 0; they run on meta and are part of the outer call.
#include "core/fake/fallback.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/fake/call.h"
#include "core/fake/converter.h"
#include "core/fake/errors.h"
#include "core/fake/operand_copies.h"

namespace shadowgraph {

void throw_device_mismatch(const OperatorInfo& info, c10::Device a, c10::Device b) {
  throw DeviceMismatchError(info.name + ": tensors are on two different devices, " + a.str() + " and " + b.str() +
                            "; move one of them with .to() (only 0-dimensional CPU tensors mix with other devices)");
}

namespace {

using torch::jit::Stack;

// Walks the tensor operands once: replaces real tensors by fakes and finds the common device.
class OperandScan {
 public:
  OperandScan(const OperatorInfo& info, ModeState* mode) : info_(info), mode_(mode), device_(info) {}

  void run(Stack& stack, size_t begin) {
    for (const uint16_t position : info_.tensor_arguments) {
      c10::IValue& argument = stack[begin + position];
      const bool written = info_.writes && position < 64 && ((info_.written_arguments >> position) & 1) != 0;
      if (argument.isTensor()) {
        visit_slot(argument, written);
      } else if (argument.isTensorList()) {
        visit_list(argument, written);
      } else if (argument.isList()) {
        visit_optional_list(argument, written);
      }
    }
  }
  const CommonDevice& device() const { return device_; }

 private:
  void visit_slot(c10::IValue& slot, bool written) {
    const at::Tensor& tensor = slot.toTensor();
    if (!tensor.defined()) return;
    if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
      device_.see(*fake);
    } else if (auto converted = converted_operand(tensor, written)) {
      device_.see(*as_fake(*converted));
      slot = std::move(*converted);
    }
  }

  void visit_list(c10::IValue& slot, bool written) {
    bool all_fake = true;
    for (const c10::IValue& element : slot.toListRef()) {
      const at::Tensor& tensor = element.toTensor();
      if (!tensor.defined()) continue;
      if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
        device_.see(*fake);
      } else {
        all_fake = false;
      }
    }
    if (all_fake) return;
    c10::List<at::Tensor> replaced;
    for (const c10::IValue& element : slot.toListRef()) {
      at::Tensor tensor = element.toTensor();
      if (tensor.defined() && !is_fake(tensor)) {
        if (auto converted = converted_operand(tensor, written)) {
          device_.see(*as_fake(*converted));
          tensor = std::move(*converted);
        }
      }
      replaced.push_back(std::move(tensor));
    }
    slot = std::move(replaced);
  }

  void visit_optional_list(c10::IValue& slot, bool written) {
    c10::List<c10::IValue> list = slot.toList();
    for (size_t i = 0; i < list.size(); ++i) {
      const c10::IValue& element = list.get(i);
      if (!element.isTensor() || !element.toTensor().defined()) continue;
      if (const FakeTensorImpl* fake = as_fake(element.toTensor().unsafeGetTensorImpl())) {
        device_.see(*fake);
      } else if (auto converted = converted_operand(element.toTensor(), written)) {
        device_.see(*as_fake(*converted));
        list.set(i, std::move(*converted));
      }
    }
  }

  // Nothing for what stays as it is: a number that the C++ API wrapped (x * 2), which Meta kernels take as it is.
  std::optional<at::Tensor> converted_operand(const at::Tensor& real, bool written) {
    if (real.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
    if (written) {
      throw RealTensorError(info_.name + " would write to a real tensor (" + c10::str(real.sizes()) +
                            ") while fake tensors are in use; nothing was written. Make the tensor inside the mode, "
                            "convert it with FakeTensorMode::from_real, or run this line under an UnfakeGuard");
    }
    return fake_of_real(real, mode_);  // on the default device if the mode maps devices
  }

  const OperatorInfo& info_;
  ModeState* mode_;
  CommonDevice device_;
};

// The device that results will pretend to be on. Leaves "meta" in an explicit device argument.
c10::Device result_device(const OperatorInfo& info, const CommonDevice& operands, ModeState* mode, Stack& stack,
                          size_t begin) {
  const c10::Device fallback = operands.or_default(mode);
  if (info.device_argument < 0) return with_index(fallback);
  c10::IValue& argument = stack[begin + static_cast<size_t>(info.device_argument)];
  c10::Device device = fallback;
  if (argument.isDevice()) {
    device = argument.toDevice();
    if (mode != nullptr && mode->map_devices_to_default) device = mode->default_device;
  }
  // Not for operators that merely accept a device beside their operand: None keeps meaning "the operand's".
  if (argument.isDevice() || !operands.known()) argument = c10::Device(c10::DeviceType::Meta);
  return with_index(device);
}

void run_kernel(const OperatorInfo& info, Stack* stack) {
  static const c10::DispatchKeySet meta_keys(c10::DispatchKey::Meta);
  switch (info.route) {
    case Route::kRule:
      info.rule->kernel.callBoxed(info.op, meta_keys, stack);
      return;
    case Route::kComposite:
    case Route::kMeta:
      info.op.redispatchBoxed(meta_keys, stack);
      return;
    case Route::kDataDependent:
      throw DataDependentError(
          info.name +
          ": the result depends on the data of a fake tensor, which has none. Ways out: compute the value from sizes "
          "instead, pass it in as a number, or run this part on real tensors under an UnfakeGuard");
    case Route::kNone:
      throw NoRuleError(info.name +
                        " has no shape rule, no decomposition and no C++ Meta kernel. Register a rule: "
                        "shadowgraph::register_rule(\"" +
                        info.name +
                        "\", &function), where function has the "
                        "operator's C++ signature and returns meta tensors; see docs/adding-an-operator.md");
  }
}

void run_on_meta(const OperatorInfo& info, Stack* stack) {
  if (info.copies_operands && thread_state.kernel_device().is_cpu()) {
    OperandDtypes operands;
    for (const uint16_t position : info.tensor_arguments) {
      const c10::IValue& argument = (*stack)[stack->size() - info.argument_count + position];
      if (argument.isTensor()) operands.see(argument.toTensor());
    }
    if (operands.may_be_copied()) {
      run_with_copied_operands(info, stack, &run_kernel);
      return;
    }
  }
  run_kernel(info, stack);
}

void wrap_results(Stack& stack, size_t begin, c10::Device device, bool watch) {
  for (size_t i = begin; i < stack.size(); ++i) {
    c10::IValue& result = stack[i];
    if (result.isTensor()) {
      at::Tensor tensor = std::move(result).toTensor();
      wrap_result(tensor, device, watch);
      result = std::move(tensor);
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list = result.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) {
        at::Tensor element = list.get(j);
        wrap_result(element, device, watch);
        list.set(j, std::move(element));
      }
    }
  }
}

// Whether the call computes from host scalars alone: real CPU tensors of one element, such as the sizes that a TorchScript
// trace turns into tensors and back. Those keep their values, so the call runs for real.
bool computes_on_host_scalars(const OperatorInfo& info, const Stack& stack, size_t begin) {
  if (info.writes || info.random || info.tensor_arguments.empty()) return false;
  bool any = false;
  const auto is_host_scalar = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return true;
    any = true;
    return tensor.unsafeGetTensorImpl()->numel() == 1 && !is_fake(tensor) && tensor.device().is_cpu() &&
           !tensor.requires_grad() && tensor.layout() == c10::Layout::Strided;
  };
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    if (argument.isTensor()) {
      if (!is_host_scalar(argument.toTensor())) return false;
    } else if (argument.isList()) {
      for (const c10::IValue& element : argument.toListRef()) {
        if (element.isTensor() && !is_host_scalar(element.toTensor())) return false;
      }
    }
  }
  if (info.device_argument >= 0) {
    const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
    if (device.isDevice() && !device.toDevice().is_cpu()) return false;
  }
  return any;
}

void run_for_real(const OperatorInfo& info, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kFakeKey);
  const c10::impl::ExcludeDispatchKeyGuard exclude(kFakeKey);
  info.op.redispatchBoxed(keys & below, stack);
}

// What an observer gets to see of a boxed call.
c10::SmallVector<CallArgument, 12> viewed(const Stack& stack, size_t begin) {
  c10::SmallVector<CallArgument, 12> arguments;
  for (size_t i = begin; i < stack.size(); ++i) arguments.emplace_back(stack[i]);
  return arguments;
}
std::span<const CallArgument> as_span(const c10::SmallVector<CallArgument, 12>& arguments) {
  return {arguments.data(), arguments.size()};
}

// A mode that shows real calls without changing them.
void observe_real_call(const OperatorInfo& info, c10::DispatchKeySet keys, Stack* stack, CallObserver& observer) {
  observer.begin_call(info, as_span(viewed(*stack, stack->size() - info.argument_count)));
  run_for_real(info, keys, stack);
  observer.end_call(info, as_span(viewed(*stack, stack->size() - info.return_count)));
}

// The lasting mode of an operand, if one has one.
std::shared_ptr<LastingMode> lasting_mode_of(const OperatorInfo& info, const Stack& stack) {
  const FindLastingMode find = find_lasting_mode.load(std::memory_order_acquire);
  if (find == nullptr) return nullptr;
  std::shared_ptr<LastingMode> found;
  const auto visit = [&](const c10::IValue& value) {
    if (found || !value.isTensor()) return;
    if (const FakeTensorImpl* fake = as_fake(value.toTensor())) found = find(*fake);
  };
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[stack.size() - info.argument_count + position];
    if (argument.isList()) {
      for (const c10::IValue& element : argument.toListRef()) visit(element);
    } else {
      visit(argument);
    }
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

// Operands that the kernel may resize (resize_, an `out=`) are not watched while it runs.
class UnwatchedOperands {
 public:
  UnwatchedOperands(const OperatorInfo& info, const Stack& stack, size_t begin, const ModeState* mode) {
    if (!info.writes || !watches_size_reads(mode)) return;
    for (const uint16_t position : info.tensor_arguments) {
      if (position >= 64 || ((info.written_arguments >> position) & 1) == 0) continue;
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

}  // namespace

void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const OperatorInfo& info = OperatorInfo::of(op);
  if (thread_state.kernel_depth != 0) {
    run_on_meta(info, stack);
    return;
  }
  ModeState* mode = thread_state.mode;
  CallObserver* observer = mode != nullptr ? mode->observer : nullptr;
  if (mode != nullptr && mode->kind == ModeKind::kObserve) {
    observe_real_call(info, keys, stack, *observer);
    return;
  }
  if (may_have_lasting_mode(mode)) {
    if (const auto lasting = lasting_mode_of(info, *stack)) {
      const LastingScope scope(*lasting);
      fake_fallback(op, keys, stack);
      return;
    }
  }
  if (info.route == Route::kComposite) {
    // Reached when autograd is skipped (inference mode): its parts are calls of their own.
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    return;
  }

  const size_t begin = stack->size() - info.argument_count;
  if (!keys.has(c10::DispatchKey::CUDA) && computes_on_host_scalars(info, *stack, begin)) {
    run_for_real(info, keys, stack);
    return;
  }
  if (mode != nullptr && mode->reads_data && info.depends_on_data && observer->compute(info, *stack)) return;
  const KernelScope kernel;
  OperandScan scan(info, mode);
  scan.run(*stack, begin);
  if (observer != nullptr) observer->begin_call(info, as_span(viewed(*stack, begin)));
  try {
    const c10::Device device = result_device(info, scan.device(), mode, *stack, begin);
    thread_state.set_kernel_device(device);
    const c10::IValue written = info.counts_writes ? (*stack)[begin] : c10::IValue();
    {
      const UnwatchedOperands unwatched(info, *stack, begin, mode);
      run_on_meta(info, stack);
    }
    if (info.counts_writes) {
      for (const c10::IValue& element : written.toListRef()) element.toTensor().unsafeGetTensorImpl()->bump_version();
    }
    const size_t results = stack->size() - info.return_count;
    wrap_results(*stack, results, device, watches_size_reads(mode));
    if (observer != nullptr) observer->end_call(info, as_span(viewed(*stack, results)));
  } catch (...) {
    if (observer != nullptr) observer->abandon_call(info);
    throw;
  }
}

namespace {

bool first_operand_pretends_cuda(const OperatorInfo& info, const Stack& stack, size_t begin) {
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    if (!argument.isTensor()) continue;
    const FakeTensorImpl* fake = as_fake(argument.toTensor());
    return fake != nullptr && fake->pretended_device().is_cuda();
  }
  return false;
}

}  // namespace

void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  const ModeState* mode = thread_state.mode;
  if (mode == nullptr || mode->kind != ModeKind::kFake || thread_state.kernel_depth != 0) {
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  const OperatorInfo& info = OperatorInfo::of(op);
  const size_t begin = stack->size() - info.argument_count;
  // Autocast, when on, must cast the operands first; its kernel calls the operator again with autocast off.
  const bool autocast_first =
      keys.has(c10::DispatchKey::AutocastCUDA) && op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
  const CompositeScope scope(mode->observer, info, as_span(viewed(*stack, begin)));
  if (info.composite_rule && !autocast_first && first_operand_pretends_cuda(info, *stack, begin)) {
    info.composite_rule->kernel.callBoxed(op, keys & below, stack);
  } else {
    op.redispatchBoxed(keys & below, stack);
  }
}

bool is_worth_a_region(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto returns_tensor = [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  };
  const bool tensor_result = std::any_of(schema.returns().begin(), schema.returns().end(), returns_tensor);
  return tensor_result || schema.returns().empty();
}

}  // namespace shadowgraph
