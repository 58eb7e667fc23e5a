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
#include "core/dispatch/fallback.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/dispatch/call.h"
#include "core/dispatch/contents_of_call.h"
#include "core/dispatch/lazy_outputs.h"
#include "core/dispatch/operand_copies.h"
#include "core/dispatch/out_form.h"
#include "core/dispatch/zeros.h"
#include "core/fake/converter.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

namespace {

using torch::jit::Stack;

// ---- Devices

// Eager's own words: those of TensorIterator for pointwise operators, those of the generated wrappers for the others.
[[noreturn]] void throw_device_mismatch(const OperatorInfo& info, uint16_t position, c10::Device common,
                                        c10::Device other) {
  std::string words;
  if (info.op.hasTag(at::Tag::pointwise)) {
    if (common.is_cpu()) std::swap(common, other);
    words = "found at least two devices, " + common.str() + " and " + other.str() + "!";
  } else {
    const std::string backend =
        common.is_cpu() ? c10::DeviceTypeName(other.type()) : c10::DeviceTypeName(common.type());
    const bool structured = info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
    const auto& name = info.op.operator_name();
    const std::string base = name.name.substr(name.name.find("::") + 2);
    words = "got " + info.op.schema().arguments()[position].name() + " is on " + other.str() +
            ", different from other tensors on " + common.str() + " (when checking argument in method wrapper_" +
            backend + "_" + (structured ? "" : name.overload_name + "_") + base + ")";
  }
  throw DeviceMismatchError(info.name + ": Expected all tensors to be on the same device, but " + words +
                            " Move one of them with .to(); only 0-dimensional CPU tensors mix with other devices");
}

[[noreturn]] void throw_index_mismatch(const OperatorInfo& info, c10::Device indexed) {
  throw DeviceMismatchError(info.name +
                            ": indices should be either on cpu or on the same device as the indexed tensor (" +
                            indexed.str() + ")");
}

// Judges the devices of the operands by the operator's rule (core/dispatch/operator_info.h).
class OperandDevices {
 public:
  explicit OperandDevices(const OperatorInfo& info) : info_(info) {}

  void see(const FakeTensorImpl& fake, uint16_t position, size_t slot, bool written) {
    const c10::Device device = fake.pretended_device();
    const bool cpu_scalar = device.is_cpu() && fake.rank() == 0 && info_.mixes_cpu_scalars;
    if (info_.device_rule == DeviceRule::kPerSlot) {
      if (slots_.size() <= slot) slots_.resize(slot + 1);
      slots_[slot].see(*this, device, position, cpu_scalar, written);
    }
    if (info_.device_rule == DeviceRule::kPerSlot && common_.known) return;
    const bool first = !common_.known;
    if (first || info_.device_rule == DeviceRule::kCommon) {
      common_.see(*this, device, position, cpu_scalar, written);
    } else if (info_.device_rule == DeviceRule::kFirstOrCpu && device != common_.device && !device.is_cpu()) {
      throw_index_mismatch(info_, common_.device);
    }
  }
  // After all operands: an operand that is written must be where the results are.
  void check_written() const {
    if (info_.device_rule == DeviceRule::kCommon) common_.check_written(*this);
    for (const Agreement& slot : slots_) slot.check_written(*this);
  }

  bool known() const { return common_.known; }
  c10::Device or_default(const ModeState* mode) const {
    return known() ? common_.device : mode != nullptr ? mode->default_device : c10::Device(c10::kCPU);
  }
  // Where result `slot` of a list belongs.
  c10::Device of_slot(size_t slot, c10::Device otherwise) const {
    return slot < slots_.size() && slots_[slot].known ? slots_[slot].device : otherwise;
  }

 private:
  struct Agreement {
    c10::Device device = c10::Device(c10::kCPU);
    c10::Device written = c10::Device(c10::kCPU);
    uint16_t written_position = 0;
    bool known = false;
    bool scalar = false;
    bool is_written = false;

    void see(const OperandDevices& all, c10::Device seen, uint16_t position, bool cpu_scalar, bool writes) {
      if (writes) {
        is_written = true;
        written = seen;
        written_position = position;
      }
      if (!known) {
        known = true;
        device = seen;
        scalar = cpu_scalar;
        return;
      }
      if (seen == device || cpu_scalar) return;
      if (!scalar) throw_device_mismatch(all.info_, position, device, seen);
      device = seen;
      scalar = false;
    }
    void check_written(const OperandDevices& all) const {
      if (is_written && written != device) throw_device_mismatch(all.info_, written_position, device, written);
    }
  };

  const OperatorInfo& info_;
  Agreement common_;
  std::vector<Agreement> slots_;
};

// ---- Operands

bool is_adopted(const at::Tensor& real, ModeState* mode) {
  if (mode == nullptr) return false;
  const std::lock_guard lock(mode->memo_mutex);
  if (mode->memo.adopted.empty()) return false;
  if (mode->memo.adopted.count(real.unsafeGetTensorImpl()) != 0) return true;
  // Or another tensor of the same storage: optimizers write to `p.data()`.
  const c10::StorageImpl* storage = real.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return std::any_of(mode->memo.adopted.begin(), mode->memo.adopted.end(), [&](const auto& entry) {
    return entry.first->unsafe_storage().unsafeGetStorageImpl() == storage;
  });
}

// Walks the tensor operands once: replaces real tensors by fakes and finds the common device.
class OperandScan {
 public:
  OperandScan(const OperatorInfo& info, ModeState* mode) : info_(info), mode_(mode), devices_(info) {}

  void run(Stack& stack, size_t begin) {
    for (const uint16_t position : info_.tensor_arguments) {
      position_ = position;
      written_ = info_.writes && position < 64 && ((info_.written_arguments >> position) & 1) != 0;
      c10::IValue& argument = stack[begin + position];
      if (argument.isTensor()) {
        visit_slot(argument);
      } else if (argument.isTensorList()) {
        visit_list(argument);
      } else if (argument.isList()) {
        visit_optional_list(argument);
      }
    }
    devices_.check_written();
  }
  const OperandDevices& devices() const { return devices_; }

 private:
  void visit_slot(c10::IValue& slot) {
    const at::Tensor& tensor = slot.toTensor();
    if (!tensor.defined()) return;
    if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
      devices_.see(*fake, position_, 0, written_);
    } else if (auto converted = converted_operand(tensor)) {
      devices_.see(*as_fake(*converted), position_, 0, written_);
      slot = std::move(*converted);
    }
  }

  void visit_list(c10::IValue& slot) {
    bool all_fake = true;
    size_t i = 0;
    for (const c10::IValue& element : slot.toListRef()) {
      const size_t index = i++;
      const at::Tensor& tensor = element.toTensor();
      if (!tensor.defined()) continue;
      if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
        devices_.see(*fake, position_, index, written_);
      } else {
        all_fake = false;
      }
    }
    if (all_fake) return;
    c10::List<at::Tensor> replaced;
    for (const c10::IValue& element : slot.toListRef()) {
      at::Tensor tensor = element.toTensor();
      if (tensor.defined() && !is_fake(tensor)) {
        if (auto converted = converted_operand(tensor)) {
          devices_.see(*as_fake(*converted), position_, replaced.size(), written_);
          tensor = std::move(*converted);
        }
      }
      replaced.push_back(std::move(tensor));
    }
    slot = std::move(replaced);
  }

  void visit_optional_list(c10::IValue& slot) {
    c10::List<c10::IValue> list = slot.toList();
    for (size_t i = 0; i < list.size(); ++i) {
      const c10::IValue& element = list.get(i);
      if (!element.isTensor() || !element.toTensor().defined()) continue;
      if (const FakeTensorImpl* fake = as_fake(element.toTensor().unsafeGetTensorImpl())) {
        devices_.see(*fake, position_, i, written_);
      } else if (auto converted = converted_operand(element.toTensor())) {
        devices_.see(*as_fake(*converted), position_, i, written_);
        list.set(i, std::move(*converted));
      }
    }
  }

  // Nothing for what stays as it is: a number that the C++ API wrapped (x * 2), which Meta kernels take as it is.
  std::optional<at::Tensor> converted_operand(const at::Tensor& real) {
    if (real.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
    const bool adopted = is_adopted(real, mode_);
    if (info_.inplace_view && (written_ || position_ == 0)) {
      throw RealTensorError(info_.name + " would change the geometry of a real tensor (" + c10::str(real.sizes()) +
                            ") while fake tensors are in use; nothing was changed. Convert it first, with "
                            "FakeTensorMode::from_real, or run this line under an UnfakeGuard");
    }
    if (written_ && !adopted) {
      throw RealTensorError(info_.name + " would write to a real tensor (" + c10::str(real.sizes()) +
                            ") while fake tensors are in use; nothing was written. Make the tensor inside the mode, "
                            "convert it with FakeTensorMode::from_real (a module with fakeify), or run this line under "
                            "an UnfakeGuard");
    }
    if (mode_ != nullptr && mode_->real_tensors == RealTensors::kRefuse && !adopted) throw_refused(info_, real);
    return fake_of_real(real, mode_);  // on the default device if the mode maps devices
  }

 public:
  [[noreturn]] static void throw_refused(const OperatorInfo& info, const at::Tensor& real) {
    throw RealTensorError(info.name + " got a real tensor (" + c10::str(real.sizes()) +
                          "), and this mode refuses them (RealTensors::kRefuse). Convert it with "
                          "FakeTensorMode::from_real, or run this line under an UnfakeGuard");
  }

 private:
  const OperatorInfo& info_;
  ModeState* mode_;
  OperandDevices devices_;
  uint16_t position_ = 0;
  bool written_ = false;
};

// The device that results will pretend to be on. Leaves "meta" in an explicit device argument.
c10::Device result_device(const OperatorInfo& info, const OperandDevices& operands, ModeState* mode, Stack& stack,
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

[[noreturn]] void throw_data_dependent(const OperatorInfo& info) {
  throw DataDependentError(
      info.name +
      ": the result depends on the data of a fake tensor, which has none. Ways out: compute the value from sizes "
      "or from tensors whose contents are known instead, pass it in as a number, or run this part on real tensors "
      "under an UnfakeGuard");
}

// Composites that copy a tensor to the CPU and read it through a pointer: what TensorImpl says then.
bool reads_data(const c10::Error& error) {
  const std::string_view words = error.what_without_backtrace();
  return words.find("its data is not allocated yet") != std::string_view::npos ||
         words.find(kPrintedFake) != std::string_view::npos;
}

// False if there is no functional form, or that calls the out= form itself (linalg_lstsq).
bool run_as_out_form(const OperatorInfo& info, Stack* stack) {
  static thread_local const OperatorInfo* running = nullptr;
  if (!info.writes || running == &info) return false;
  const auto functional = functional_form(info.op);
  if (!functional) return false;
  struct Running {
    const OperatorInfo* outer = running;
    explicit Running(const OperatorInfo* now) { running = now; }
    ~Running() { running = outer; }
  } const guard(&info);
  run_out_form(info.op, *functional, stack);
  return true;
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
      if (run_as_out_form(info, stack)) return;
      throw_data_dependent(info);
    case Route::kNone:
      if (run_as_out_form(info, stack)) return;
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

void wrap_results(Stack& stack, size_t begin, c10::Device device, const OperandDevices& devices, bool watch) {
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
        wrap_result(element, devices.of_slot(j, device), watch);
        list.set(j, std::move(element));
      }
    }
  }
}

// Whether the call computes from host scalars alone: real CPU tensors of one element, such as the sizes that a TorchScript
// trace turns into tensors and back. Those keep their values, so the call runs for real.
bool computes_on_host_scalars(const OperatorInfo& info, const ModeState* mode, const Stack& stack, size_t begin) {
  if (mode != nullptr && mode->real_tensors == RealTensors::kRefuse) return false;
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
  try {
    run_for_real(info, keys, stack);
  } catch (...) {
    observer.abandon_call(info);
    throw;
  }
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

// at::tensor({...}) begins with at::empty on the CPU, or where nobody says.
bool makes_room_for_literal(const OperatorInfo& info, const Stack& stack, size_t begin) {
  static const OperatorInfo& empty =
      OperatorInfo::of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty", "memory_format"));
  if (info.key != empty.key) return false;
  const c10::IValue& device = stack[begin + static_cast<size_t>(info.device_argument)];
  return !device.isDevice() || device.toDevice().is_cpu();
}

}  // namespace

void open_if_literal(const at::Tensor& fresh) {
  if (fresh.unsafeGetTensorImpl()->numel() != 0 && as_fake(fresh)->rank() == 1) open_for_literal(fresh);
}

void fake_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const OperatorInfo& info = OperatorInfo::of(op);
  if (thread_state.kernel_depth != 0) {
    run_on_meta(info, stack);
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
      fake_fallback(op, keys, stack);
      return;
    }
  }
  if (C10_UNLIKELY(lazy_output != nullptr)) {
    if (const at::Tensor lazy = take_lazy_output(info, *stack); lazy.defined()) {
      fake_fallback(op, keys, stack);
      resize_like(lazy, stack->back().toTensor());
      return;
    }
  }
  if (info.route == Route::kComposite) {
    // Reached when autograd is skipped (inference mode), and by out= forms that it does not know: the parts are calls of
    // their own.
    const bool implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    op.callBoxedForDispatchKey(
        implicit ? c10::DispatchKey::CompositeImplicitAutograd : c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }

  const size_t begin = stack->size() - info.argument_count;
  if (!keys.has(c10::DispatchKey::CUDA) && computes_on_host_scalars(info, mode, *stack, begin)) {
    run_for_real(info, keys, stack);
    return;
  }
  if (mode != nullptr && mode->reads_data && info.depends_on_data && observer->compute(info, *stack)) return;
  const KernelScope kernel;
  OperandScan scan(info, mode);
  scan.run(*stack, begin);
  ContentsOfCall contents(info, *stack, begin);
  if (observer != nullptr) observer->begin_call(info, as_span(viewed(*stack, begin)));
  try {
    const bool may_hold_literal = makes_room_for_literal(info, *stack, begin);
    const c10::Device device = result_device(info, scan.devices(), mode, *stack, begin);
    thread_state.set_kernel_device(device);
    if (contents.decides_results()) {
      contents.run_instead(*stack, begin, device);
      if (observer != nullptr) {
        observer->end_call(info, as_span(viewed(*stack, stack->size() - info.return_count)));
      }
      return;
    }
    const c10::IValue written = info.counts_writes ? (*stack)[begin] : c10::IValue();
    {
      const UnwatchedOperands unwatched(info, *stack, begin, mode);
      if (C10_UNLIKELY(info.route == Route::kNone && mode != nullptr && mode->unknown_operators_on_zeros)) {
        run_on_zeros(info, *stack, begin, device);
      } else {
        run_on_meta(info, stack);
      }
    }
    if (info.counts_writes) {
      for (const c10::IValue& element : written.toListRef()) element.toTensor().unsafeGetTensorImpl()->bump_version();
    }
    const size_t results = stack->size() - info.return_count;
    wrap_results(*stack, results, device, scan.devices(), watches_size_reads(mode));
    contents.run_after(*stack, results);
    if (observer != nullptr) observer->end_call(info, as_span(viewed(*stack, results)));
    if (may_hold_literal) open_if_literal((*stack)[results].toTensor());
  } catch (...) {
    if (observer != nullptr) observer->abandon_call(info);
    throw;
  }
}

namespace {

// libtorch's set_data is no operator, but it asks this one first.
bool is_asked_before_data_is_replaced(const c10::OperatorHandle& op) {
  static const size_t asked = std::hash<c10::OperatorHandle>{}(
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::_has_compatible_shallow_copy_type", ""));
  return std::hash<c10::OperatorHandle>{}(op) == asked;
}

// `.data =` and Module::to would leave a real tensor object with a fake's insides.
void refuse_to_replace_data(const OperatorInfo& info, const Stack& stack, size_t begin) {
  const at::Tensor& self = stack[begin].toTensor();
  if (!self.defined() || is_fake(self) || !is_fake(stack[begin + 1].toTensor())) return;
  throw RealTensorError(info.name + " would give a real tensor (" + c10::str(self.sizes()) +
                        ") the data of another one while fake tensors are in use (`.data =`, Module::to); nothing was "
                        "changed. Make the tensor or module inside the mode, or run this line under an UnfakeGuard");
}

// Whether autocast is on and has a kernel for `op`.
bool casts_first(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  for (const auto key :
       {c10::DispatchKey::AutocastCUDA, c10::DispatchKey::AutocastXPU, c10::DispatchKey::AutocastMPS}) {
    if (keys.has(key) && op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool composite_rule_replaces(const OperatorInfo& info, const Stack& stack, size_t begin) {
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    if (!argument.isTensor()) continue;
    const FakeTensorImpl* fake = as_fake(argument.toTensor());
    return fake != nullptr && composite_rule_replaces(info, fake->pretended_device().type());
  }
  return false;
}

}  // namespace

bool composite_rule_replaces(const OperatorInfo& info, c10::DeviceType device) {
  if (device == c10::DeviceType::CUDA) return true;
  if (device == c10::DeviceType::CPU) {
    return info.name == "aten::lstm.input" && thread_state.mode->profile.cpu != CpuProfile::this_machine();
  }
  const bool asks_its_library = device == c10::DeviceType::XPU || device == c10::DeviceType::MPS;
  return asks_its_library && info.name == "aten::scaled_dot_product_attention";
}

void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
  const ModeState* mode = thread_state.mode;
  if (mode == nullptr || mode->kind != ModeKind::kFake || thread_state.kernel_depth != 0) {
    op.redispatchBoxed(keys & below, stack);
    return;
  }
  const OperatorInfo& info = OperatorInfo::of(op);
  const size_t begin = stack->size() - info.argument_count;
  if (C10_UNLIKELY(is_asked_before_data_is_replaced(op))) refuse_to_replace_data(info, *stack, begin);
  // Autocast, when on, must cast the operands first; its kernel calls the operator again with autocast off.
  const bool autocast_first = casts_first(op, keys);
  const CompositeScope scope(mode->observer, info, as_span(viewed(*stack, begin)));
  try {
    if (info.composite_rule && !autocast_first && composite_rule_replaces(info, *stack, begin)) {
      info.composite_rule->kernel.callBoxed(op, keys & below, stack);
    } else {
      op.redispatchBoxed(keys & below, stack);
    }
  } catch (const c10::Error& error) {
    if (!reads_data(error)) throw;
    throw_data_dependent(info);
  }
}

bool is_worth_a_region(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto returns_tensor = [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::TensorType::get()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  };
  const bool tensor_result = std::any_of(schema.returns().begin(), schema.returns().end(), returns_tensor);
  return tensor_result || schema.returns().empty() || is_asked_before_data_is_replaced(op);
}

}  // namespace shadowgraph
