// Kernels with the C++ signature of an operator, for the operators that programs call most.
#pragma once

#include <ATen/Operators.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/fake/dispatch/call.h"
#include "core/fake/dispatch/operand_scan.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/dispatch/run_on_meta.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/libtorch/python_key.h"

namespace shadowgraph {

// Inspects the operands of an unboxed call: whether all are fakes, and on which device.
class OperandView {
 public:
  template <class T>
  void see(const T& argument) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      see_tensor(argument);
    } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
      if (argument.has_value()) see_tensor(*argument);
    } else if constexpr (std::is_same_v<T, at::TensorList> || std::is_same_v<T, at::ITensorListRef>) {
      for (const at::Tensor& element : argument) see_tensor(element);
    } else if constexpr (std::is_same_v<T, c10::List<std::optional<at::Tensor>>>) {
      for (const c10::IValue& element : c10::IValue(argument).toListRef()) {
        if (element.isTensor()) see_tensor(element.toTensor());
      }
    }
  }
  // Returns false if a real tensor must first be converted, or if there are no fake operands and the call may be on
  // host scalars.
  bool are_fakes() const { return fakes_; }
  bool has_contents_among() const { return contents_; }
  // Returns false if devices differ or the call may read or write known contents, which the boxed call handles.
  bool are_plain(bool writes) const { return !device_.is_mixed() && (!contents_ || (unknown_ && !writes)); }
  const CommonDevice& device() const { return device_; }

 private:
  void see_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (const FakeTensorImpl* fake = as_fake(tensor.unsafeGetTensorImpl())) {
      device_.see(*fake);
      (has_contents(*fake->unsafe_storage().unsafeGetStorageImpl()) ? contents_ : unknown_) = true;
    } else if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      fakes_ = false;
    }
  }
  CommonDevice device_;
  bool fakes_ = true;
  bool contents_ = false;  // some operand has known contents
  bool unknown_ = false;   // some operand has none
};

template <class T, class... Others>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Others> || ...);

// Operators that may create known contents although no operand has any. Not copies: their result is known only if their
// source, an operand, is.
template <class Operator>
inline constexpr bool kMakesContents =
    kIsOneOf<Operator, at::_ops::arange_start_step, at::_ops::zeros, at::_ops::full, at::_ops::fill__Scalar,
             at::_ops::zero_, at::_ops::zeros_like, at::_ops::ones_like>;

// Operators called while a tensor is printed: the conversion to double, and copies and parts of its result.
template <class Operator>
inline constexpr bool kIsPrintedWith = kIsOneOf<Operator, at::_ops::_to_copy, at::_ops::clone, at::_ops::select_int>;

template <class T>
inline constexpr bool kIsOperand = kIsOneOf<T, at::Tensor, std::optional<at::Tensor>, at::TensorList,
                                            at::ITensorListRef, c10::List<std::optional<at::Tensor>>>;

// Replaces an explicit device by "meta" for the kernel.
template <class T>
void take_explicit_device(T& argument, c10::Device& device, const ModeState* mode, bool has_operands) {
  if constexpr (std::is_same_v<T, std::optional<c10::Device>>) {
    if (argument.has_value()) {
      device = mode != nullptr && mode->maps_devices() ? mode->default_device : *argument;
    }
    if (argument.has_value() || !has_operands) argument = c10::Device(c10::DeviceType::Meta);
  }
}

// Returns whether the call makes pinned memory: the boxed call handles that. Schemas have no other optional bool.
template <class T>
bool requests_pinned(const T& argument) {
  if constexpr (std::is_same_v<T, std::optional<bool>>) return argument.value_or(false);
  return false;
}
template <class Operator, class... T>
bool makes_pinned(const T&... arguments) {
  bool is_non_blocking = false;
  if constexpr (std::is_same_v<Operator, at::_ops::_to_copy>) {
    is_non_blocking = std::get<5>(std::forward_as_tuple(arguments...));
  }
  return is_non_blocking || (requests_pinned(arguments) || ...);
}

template <class T>
bool names_other_device(const T& argument) {
  if constexpr (std::is_same_v<T, std::optional<c10::Device>>) return argument.has_value() && !argument->is_cpu();
  return false;
}

template <class T>
void wrap_all(T& result, c10::Device device, bool watch) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    wrap_result(result, device, watch);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    for (at::Tensor& element : result) wrap_result(element, device, watch);
  }
}
template <class... T>
void wrap_all(std::tuple<T...>& results, c10::Device device, bool watch) {
  std::apply([&](auto&... result) { (wrap_all(result, device, watch), ...); }, results);
}

template <class T>
void show_results(CallObserver& observer, const OperatorInfo& info, const T& result) {
  const CallArgument view = CallArgument::of(result);
  observer.end_call(info, {&view, 1});
}
template <class... T>
void show_results(CallObserver& observer, const OperatorInfo& info, const std::tuple<T...>& results) {
  std::apply(
      [&](const auto&... result) {
        const CallArgument views[] = {CallArgument::of(result)...};
        observer.end_call(info, views);
      },
      results);
}

// A boxed call moves every argument into an IValue, and lists of sizes onto the heap; the kernel moves them back, and
// so do the results. That is half of the time of an add. Unboxed kernels follow the steps of fake_fallback without
// boxing, and forward to it in all but the common case: a real operand, an observed real run, a rule with other C++
// types.
//
//     register_unboxed<at::_ops::mm, at::_ops::bmm>(library);  // library: aten on kFakeKey

// Caches an operator's OperatorInfo; nullptr if its rule cannot be called unboxed.
class UnboxedOperator {
 public:
  // A rule's function must have one of two types: the operator's, with SymInt or with plain integers. User-defined
  // rules are called boxed (core/fake/dispatch/fallback.cpp).
  UnboxedOperator(const char* name, const char* overload, const std::type_info& symbolic, const std::type_info& plain);

  const OperatorInfo* info() {
    const OperatorInfo* known = info_.load(std::memory_order_acquire);
    return C10_LIKELY(known != nullptr && known->is_current()) ? known : find();
  }
  const c10::OperatorHandle op;

 private:
  const OperatorInfo* find();
  const std::type_info& symbolic_;
  const std::type_info& plain_;
  std::atomic<const OperatorInfo*> info_{nullptr};
};

template <class Operator, class Signature = typename Operator::schema>
class UnboxedCall;

template <class Operator, class Return, class... Args>
class UnboxedCall<Operator, Return(Args...)> {
 public:
  static UnboxedOperator& operator_() {
    static auto* found = new UnboxedOperator(Operator::name, Operator::overload_name, typeid(Return(Args...)),
                                             typeid(typename c10::fn_remove_symint<Return(Args...)>::type));
    return *found;
  }

  // Runs on kFakeKey.
  static Return fake(c10::DispatchKeySet keys, Args... args) {
    if (is_first_for_python(kFakeKey, keys)) return boxed<&fake_fallback>(keys, std::forward<Args>(args)...);
    const OperatorInfo* info = operator_().info();
    if (C10_UNLIKELY(info == nullptr || (info->route != Route::kRule && info->route != Route::kMeta)))
      return boxed<&fake_fallback>(keys, std::forward<Args>(args)...);
    if (thread_state.kernel_depth != 0) {
      if (copies_operands(*info, thread_state.kernel_device(), args...) || may_refuse_dtypes(*info, args...)) {
        return boxed<&fake_fallback>(keys, std::forward<Args>(args)...);
      }
      return on_meta(*info, std::forward<Args>(args)...);
    }
    [[maybe_unused]] bool is_printed = false;
    if constexpr (kIsPrintedWith<Operator>) {
      is_printed = C10_UNLIKELY(may_be_printed(args...));
    }
    close_open_literal();
    ModeState* mode = thread_state.mode;
    OperandView operands;
    (operands.see(args), ...);
    constexpr bool kHasOperands = (kIsOperand<std::decay_t<Args>> || ...);
    if (C10_UNLIKELY(
            !operands.are_fakes() ||
            // An observer must first see what the host wrote into known contents.
            !operands.are_plain(info->touched_arguments != 0 || (mode != nullptr && mode->observer != nullptr)) ||
            kMakesContents<Operator> || makes_pinned<Operator>(args...) ||
            (info->contents_rule != ContentsRule::kNone &&
             (operands.has_contents_among() || (mode != nullptr && mode->options.host_reads.finite))) ||
            (kHasOperands && !operands.device().known()) || (reach_real<Args>(args) || ...) ||
            (mode != nullptr && (mode->kind == ModeKind::kObserve || (mode->reads_data && info->depends_on_data))) ||
            may_have_persistent_mode(mode) || copies_operands(*info, operands.device().or_default(mode), args...) ||
            may_refuse_dtypes(*info, args...))) {
      return boxed<&fake_fallback>(keys, std::forward<Args>(args)...);
    }
    Steps call{*info, operands, {args...}};
    if constexpr (kIsPrintedWith<Operator>) {
      Return result = execute_call(*info, mode, call);
      if (C10_UNLIKELY(is_printed)) refuse_to_print(result);
      return result;
    } else {
      return execute_call(*info, mode, call);
    }
  }

  // Runs on kCompositeKey.
  static Return composite(c10::DispatchKeySet keys, Args... args) {
    constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
    const ModeState* mode = thread_state.mode;
    if (!reports_composites(mode)) return Operator::redispatch(keys & kBelow, std::forward<Args>(args)...);
    const OperatorInfo* info = operator_().info();
    // Autocast must cast the operands before a rule runs.
    if (info == nullptr || (info->composite_rule && keys.has_any(c10::autocast_dispatch_keyset))) {
      return boxed<&composite_kernel>(keys, std::forward<Args>(args)...);
    }
    const auto run = [&]() -> Return {
      if (mode->observer == nullptr) return decompose(*info, keys & kBelow, std::forward<Args>(args)...);
      const CallArgument views[] = {CallArgument::of(args)...};
      const CompositeScope scope(mode->observer, *info, views);
      return decompose(*info, keys & kBelow, std::forward<Args>(args)...);
    };
    if constexpr (std::is_same_v<Operator, at::_ops::to_device>) {
      const bool is_printed = may_be_printed(args...);
      Return result = run();
      if (C10_UNLIKELY(is_printed)) refuse_to_print(result);
      return result;
    } else {
      return run();
    }
  }

 private:
  // Implements the steps of execute_call for fake operands whose known contents do not change.
  struct Steps {
    using Result = Return;
    const OperatorInfo& info;
    const OperandView& operands;
    std::tuple<std::remove_reference_t<Args>&...> args;

    void take_operands() {}
    void show_arguments(CallObserver& observer) {
      std::apply(
          [&](auto&... each) {
            const CallArgument views[] = {CallArgument::of(each)...};
            observer.begin_call(info, std::span<const CallArgument>(views, sizeof...(Args)));
          },
          args);
    }
    bool may_start_literal() {
      if constexpr (std::is_same_v<Operator, at::_ops::empty_memory_format>) {
        return std::apply([](auto&... each) { return ((!names_other_device(each)) && ...); }, args);
      }
      return false;
    }
    c10::Device resolve_device(const ModeState* mode) {
      c10::Device device = operands.device().or_default(mode);
      std::apply([&](auto&... each) { (take_explicit_device(each, device, mode, operands.device().known()), ...); },
                 args);
      return device;
    }
    Return run(c10::Device) {
      return std::apply([&](auto&... each) -> Return { return on_meta(info, static_cast<Args&&>(each)...); }, args);
    }
    template <class T>
    void wrap(T& result, c10::Device device, bool watch) {
      if constexpr (!std::is_reference_v<Return>) wrap_all(result, device, watch);
    }
    template <class T>
    void show_results(CallObserver& observer, const T& result) {
      shadowgraph::show_results(observer, info, result);
    }
    const at::Tensor& fresh(const Return& result) {
      if constexpr (std::is_same_v<std::decay_t<Return>, at::Tensor>) return result;
      TORCH_INTERNAL_ASSERT(false);
    }
  };

  static bool may_be_printed(const at::Tensor& self, std::optional<c10::ScalarType> dtype,
                             std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                             std::optional<bool> pin_memory, bool, std::optional<c10::MemoryFormat> format) {
    return dtype == c10::ScalarType::Double && device == c10::Device(c10::kCPU);
  }
  static bool may_be_printed(const at::Tensor& self, c10::Device device, c10::ScalarType dtype, bool, bool,
                             std::optional<c10::MemoryFormat> format) {
    return dtype == c10::ScalarType::Double && device == c10::Device(c10::kCPU);
  }
  static bool may_be_printed(const at::Tensor& self, std::optional<c10::MemoryFormat> format) {
    return thread_state.literal != nullptr && is_refused_to_print(self);
  }
  static bool may_be_printed(const at::Tensor& self, int64_t dimension, const c10::SymInt& index) {
    return thread_state.literal != nullptr && is_refused_to_print(self);
  }

  // Returns whether a write to this argument would reach a real tensor.
  template <class T>
  static bool reach_real(const std::decay_t<T>& argument) {
    if constexpr (std::is_same_v<T, at::Tensor&>) {
      return argument.defined() && is_fake(argument) && writes_may_reach_real(argument) &&
             writes_reach_real_tensor(argument, thread_state.mode);
    }
    return false;
  }

  template <c10::KernelFunction::BoxedKernelFunction_withDispatchKeys* function>
  static Return boxed(c10::DispatchKeySet keys, Args... args) {
    static const auto kernel = c10::BoxedKernel::makeFromFunction<function>();
    return c10::impl::BoxedKernelWrapper<Return(Args...)>::call(kernel, operator_().op, keys,
                                                                std::forward<Args>(args)...);
  }

  static OperandDtypes dtypes_of(const std::decay_t<Args>&... args) {
    OperandDtypes operands;
    const auto see = [&]<class T>(const T& argument) {
      if constexpr (std::is_same_v<T, at::Tensor>) operands.see(argument);
      if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
        if (argument.has_value()) operands.see(*argument);
      }
    };
    (see(args), ...);
    return operands;
  }
  static bool copies_operands(const OperatorInfo& info, c10::Device device, const std::decay_t<Args>&... args) {
    return info.copies_operands && device.is_cpu() && dtypes_of(args...).may_be_copied();
  }
  static bool may_refuse_dtypes(const OperatorInfo& info, const std::decay_t<Args>&... args) {
    return info.checks_dtypes && dtypes_of(args...).may_be_refused();
  }

  static Return on_meta(const OperatorInfo& info, Args... args) {
    constexpr c10::DispatchKeySet kMetaKeys(c10::DispatchKey::Meta);
    if (info.route == Route::kRule) {
      return info.rule->kernel.template call<Return, Args...>(info.op, kMetaKeys, std::forward<Args>(args)...);
    }
    if (info.meta_kernel == nullptr) return Operator::redispatch(kMetaKeys, std::forward<Args>(args)...);
    return info.meta_kernel->template call<Return, Args...>(info.op, kMetaKeys, std::forward<Args>(args)...);
  }

  static Return decompose(const OperatorInfo& info, c10::DispatchKeySet keys, Args... args) {
    if (info.composite_rule && composite_rule_applies_to(info, args...)) {
      return info.composite_rule->kernel.template call<Return, Args...>(info.op, keys, std::forward<Args>(args)...);
    }
    return Operator::redispatch(keys, std::forward<Args>(args)...);
  }

  template <class First, class... Rest>
  static bool composite_rule_applies_to(const OperatorInfo& info, const First& first, const Rest&... rest) {
    if constexpr (std::is_same_v<First, at::Tensor>) {
      const auto device = device_of_fake_or_wrapper(first);
      return device && composite_rule_applies(info, device->type());
    } else if constexpr (sizeof...(Rest) != 0) {
      return composite_rule_applies_to(info, rest...);
    } else {
      return false;
    }
  }
};

template <class Operator>
std::string unboxed_name() {
  const std::string_view overload = Operator::overload_name;
  const std::string name = std::string(Operator::name).substr(std::string_view(Operator::name).find("::") + 2);
  return overload.empty() ? name : name + "." + std::string(overload);
}

// `aten` registers into that namespace on kFakeKey or kCompositeKey.
template <class... Operators>
void register_unboxed(torch::Library& aten, std::source_location place = std::source_location::current()) {
  (note_fast_path("aten::" + unboxed_name<Operators>(), place), ...);
  (aten.impl(unboxed_name<Operators>().c_str(), torch::CppFunction(TORCH_FN((&UnboxedCall<Operators>::fake)))), ...);
}
template <class... Operators>
void register_unboxed_composite(torch::Library& aten, std::source_location place = std::source_location::current()) {
  (note_fast_path("aten::" + unboxed_name<Operators>(), place), ...);
  (aten.impl(unboxed_name<Operators>().c_str(), torch::CppFunction(TORCH_FN((&UnboxedCall<Operators>::composite)))),
   ...);
}

// The operators with unboxed kernels, chosen by call counts in training steps of the built-in models. All others use
// the boxed fallback, with the same results. One file per family, because each is slow to compile.
void register_unboxed_views(torch::Library& aten);
void register_unboxed_pointwise(torch::Library& aten);
void register_unboxed_products(torch::Library& aten);
void register_unboxed_reductions(torch::Library& aten);
void register_unboxed_operators(torch::Library& aten);  // all of these
void register_unboxed_composites(torch::Library& aten);

}  // namespace shadowgraph
