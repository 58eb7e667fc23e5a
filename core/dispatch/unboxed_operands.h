// Says what kernels with an operator's own signature (core/dispatch/unboxed_call.h) ask of single arguments and do to
// single results. There are templates over their types, one overload or specialisation a kind. Internal to core/.
#pragma once

#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/dispatch/call.h"
#include "core/dispatch/operand_scan.h"

namespace shadowgraph {

// Looks at the operands of an unboxed call: whether all of them are fakes, and on which device.
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
  // Returns false when a real tensor must first become a fake, or when no operand is one and the call may be on host
  // scalars.
  bool are_fakes() const { return fakes_; }
  bool has_contents_among() const { return contents_; }
  // Returns false where devices differ, or the call may read or write contents: the boxed call knows what to do.
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
  bool contents_ = false;  // those of some operand are known
  bool unknown_ = false;   // ... are not
};

// Says whether contents may become known by a call of this operator although those of no operand are.
template <class Operator>
struct MakesContents {
  template <class... Args>
  static bool in(const Args&...) {
    return false;
  }
};
struct MakesContentsAlways {
  template <class... Args>
  static bool in(const Args&...) {
    return true;
  }
};
template <>
struct MakesContents<at::_ops::arange_start_step> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::zeros> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::full> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::fill__Scalar> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::zero_> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::zeros_like> : MakesContentsAlways {};
template <>
struct MakesContents<at::_ops::ones_like> : MakesContentsAlways {};
// A copy's source must be known: the operands have contents then.

// Printing a tensor calls these: the conversion to doubles, and copies and parts of its result.
template <class Operator>
inline constexpr bool kIsPrintedWith =
    std::is_same_v<Operator, at::_ops::_to_copy> || std::is_same_v<Operator, at::_ops::clone> ||
    std::is_same_v<Operator, at::_ops::select_int>;

template <class T>
inline constexpr bool kIsOperand = std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::optional<at::Tensor>> ||
                                   std::is_same_v<T, at::TensorList> || std::is_same_v<T, at::ITensorListRef> ||
                                   std::is_same_v<T, c10::List<std::optional<at::Tensor>>>;

// Makes an explicit device "meta" for the kernel.
template <class T>
void take_explicit_device(T& argument, c10::Device& device, const ModeState* mode, bool has_operands) {
  if constexpr (std::is_same_v<T, std::optional<c10::Device>>) {
    if (argument.has_value()) {
      device = mode != nullptr && mode->maps_devices() ? mode->default_device : *argument;
    }
    if (argument.has_value() || !has_operands) argument = c10::Device(c10::DeviceType::Meta);
  }
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

}  // namespace shadowgraph
