// Visits or replaces the tensors in a boxed argument or result: Tensor, Tensor[], Tensor?[], Tensor[][].
// Internal to core/.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace shadowgraph {

// In order, including undefined tensors.
template <class F>
void for_each_tensor(const c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, f);
  }
}

// The same for the elements of `stack` at these positions from `begin` on.
template <class Positions, class F>
void for_each_tensor(const torch::jit::Stack& stack, size_t begin, const Positions& positions, F&& f) {
  for (const auto position : positions) for_each_tensor(stack[begin + position], f);
}

// Returns the value with each defined tensor replaced by `f(tensor)`. Lists are copied; other values are unchanged.
template <class F>
c10::IValue with_tensors(const c10::IValue& value, F&& f) {
  const auto of = [&](const at::Tensor& tensor) -> at::Tensor { return tensor.defined() ? f(tensor) : tensor; };
  if (value.isTensor()) return of(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(of(element.toTensor()));
    return list;
  }
  const auto is_tensor = [](const c10::IValue& element) { return element.isTensor(); };
  if (!value.isList() || std::ranges::none_of(value.toListRef(), is_tensor)) return value;
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& element : value.toListRef()) {
    const bool present = element.isTensor() && element.toTensor().defined();
    list.push_back(present ? std::optional(of(element.toTensor())) : std::nullopt);
  }
  return list;
}

// Lets `f(tensor, result, element)` modify the results from `begin` on in a stack; elements of lists in place.
template <class F>
void change_results(torch::jit::Stack& stack, size_t begin, F&& f) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      at::Tensor tensor = std::move(stack[i]).toTensor();
      f(tensor, i - begin, size_t{0});
      stack[i] = std::move(tensor);
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list = stack[i].toTensorList();
      for (size_t j = 0; j < list.size(); ++j) {
        at::Tensor element = list.get(j);
        f(element, i - begin, j);
        list.set(j, std::move(element));
      }
    }
  }
}

}  // namespace shadowgraph
