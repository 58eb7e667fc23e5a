#include "core/dispatch/zeros.h"

#include <ATen/EmptyTensor.h>

#include <cstring>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

[[noreturn]] void refuse(const OperatorInfo& info, const std::string& why) {
  throw NoRuleError(info.name +
                    " has no shape rule, no decomposition and no C++ Meta kernel, and cannot be run on zeros: " + why +
                    ". Register a rule, see docs/adding-an-operator.md");
}

at::Tensor zeros_of(const at::Tensor& fake) {
  at::Tensor real = at::detail::empty_strided_cpu(fake.sizes(), fake.strides(), fake.scalar_type());
  if (real.storage().nbytes() != 0) std::memset(real.storage().mutable_data(), 0, real.storage().nbytes());
  return real;
}

// Says whether operands tell where to read: an integer tensor beside another tensor, or a name that says so.
bool indexes(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) {
  for (const char* word : {"index", "gather", "scatter", "embedding", "take", "put_", "lookup", "select"}) {
    if (info.name.find(word) != std::string::npos) return true;
  }
  int tensors = 0;
  bool integers = false;
  const auto see = [&](const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    ++tensors;
    integers = integers || c10::isIntegralType(value.toTensor().scalar_type(), /*includeBool=*/false);
  };
  for (const uint16_t position : info.tensor_arguments) {
    const c10::IValue& argument = stack[begin + position];
    see(argument);
    if (argument.isList()) {
      for (const c10::IValue& element : argument.toListRef()) see(element);
    }
  }
  return integers && tensors > 1;
}

}  // namespace

void run_on_zeros(const OperatorInfo& info, torch::jit::Stack& stack, size_t begin, c10::Device device) {
  if (!info.op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) refuse(info, "it has no CPU kernel");
  if (info.inplace_view) refuse(info, "it changes the geometry of its operand");
  if (info.is_view) refuse(info, "its results are views");
  if (indexes(info, stack, begin)) refuse(info, "it indexes with an operand, which zeros could take out of bounds");

  const torch::jit::Stack fakes(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
  torch::jit::Stack real = fakes;
  std::vector<std::pair<at::Tensor, at::Tensor>> operands;  // real, fake
  const auto converted = [&](const at::Tensor& fake) {
    if (as_fake(fake) == nullptr) return fake;
    operands.emplace_back(zeros_of(fake), fake);
    return operands.back().first;
  };
  const auto faked = [&](const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [zeros, fake] : operands) {
      if (zeros.is_same(result)) return fake;
      if (zeros.is_alias_of(result))
        refuse(info, "a result shares memory with an operand, which its schema does not say");
    }
    return FakeTensorImpl::empty_strided(result.sizes(), result.strides(), result.dtype(), device);
  };
  const RealCalls calls;
  for (const uint16_t position : info.tensor_arguments) {
    c10::IValue& argument = real[position];
    if (argument.isTensor()) {
      if (argument.toTensor().defined()) argument = converted(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : argument.toListRef()) list.push_back(converted(element.toTensor()));
      argument = std::move(list);
    } else if (argument.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : argument.toListRef()) {
        list.push_back(element.isTensor() ? std::optional(converted(element.toTensor())) : std::nullopt);
      }
      argument = std::move(list);
    }
  }
  if (info.device_argument >= 0) real[static_cast<size_t>(info.device_argument)] = c10::Device(c10::DeviceType::CPU);
  info.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &real);
  stack.resize(begin);
  for (const c10::IValue& result : real) {
    if (result.isTensor()) {
      stack.emplace_back(faked(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : result.toListRef()) list.push_back(faked(element.toTensor()));
      stack.emplace_back(std::move(list));
    } else {
      throw DataDependentError(info.name + " returns a " + result.tagKind() +
                               ", which depends on data; zeros would make it a wrong one");
    }
  }
}

}  // namespace shadowgraph
