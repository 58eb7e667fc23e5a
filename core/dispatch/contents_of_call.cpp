#include "core/dispatch/contents_of_call.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>

#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_limit.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {
namespace {

template <class F>
void for_each_tensor(const c10::IValue& argument, F&& f) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) f(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) f(element.toTensor());
    }
  }
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

bool in(uint64_t mask, uint16_t position) { return position < 64 && ((mask >> position) & 1) != 0; }

}  // namespace

ContentsOfCall::ContentsOfCall(const OperatorInfo& info, const torch::jit::Stack& stack, size_t begin) : info_(info) {
  CallObserver* observer = thread_state.mode != nullptr ? thread_state.mode->observer : nullptr;
  known_ = info.evaluable;
  bool reads = false;
  int64_t most_overwritten = 0;
  for (const uint16_t position : info.tensor_arguments) {
    const bool overwritten = in(info.overwritten_arguments, position);
    const bool unread = in(info.unread_arguments, position);
    for_each_tensor(stack[begin + position], [&](const at::Tensor& tensor) {
      if (as_fake(tensor) == nullptr) return;  // a number that the C++ API wrapped
      const c10::StorageImpl& storage = storage_of(tensor);
      if (observer != nullptr && has_contents(storage)) show_host_writes(tensor, *observer);
      if (!known_ || unread) return;
      if (overwritten) {
        known_ = storage.nbytes() <= kMostKnownBytes;
        most_overwritten = std::max(most_overwritten, tensor.numel());
      } else {
        known_ = is_known(tensor);
        reads = true;
      }
    });
  }
  if (known_) {
    most_elements_ = reads || info.name.starts_with("aten::arange") ? kMostKnownElements : kMostFilledElements;
    known_ = most_overwritten <= most_elements_;
  }
  if (known_) {
    arguments_.assign(stack.begin() + static_cast<ptrdiff_t>(begin), stack.end());
  } else if (info.touched_arguments != 0) {
    for (const uint16_t position : info.tensor_arguments) {
      if (!in(info.touched_arguments, position)) continue;
      for_each_tensor(stack[begin + position], [](const at::Tensor& tensor) {
        if (as_fake(tensor) != nullptr) forget_contents(storage_of(tensor));
      });
    }
  }
}

bool ContentsOfCall::decides_results() const { return known_ && info_.depends_on_data && !info_.writes; }

// Fakes become real tensors on their contents, devices the CPU.
torch::jit::Stack ContentsOfCall::real_arguments() {
  torch::jit::Stack real = arguments_;
  const auto converted = [&](const at::Tensor& tensor, uint16_t position) -> at::Tensor {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) return tensor;
    if (in(info_.unread_arguments, position)) {
      return at::detail::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    }
    if (in(info_.written_arguments, position)) {
      return contents_to_write(tensor);
    }
    return *known_value(tensor);
  };
  for (const uint16_t position : info_.tensor_arguments) {
    c10::IValue& argument = real[position];
    if (argument.isTensor()) {
      if (argument.toTensor().defined()) argument = converted(argument.toTensor(), position);
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : argument.toListRef()) list.push_back(converted(element.toTensor(), position));
      argument = std::move(list);
    } else if (argument.isList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& element : argument.toListRef()) {
        list.push_back(element.isTensor() && element.toTensor().defined()
                           ? std::optional(converted(element.toTensor(), position))
                           : std::nullopt);
      }
      argument = std::move(list);
    }
  }
  if (info_.device_argument >= 0) {
    c10::IValue& device = real[static_cast<size_t>(info_.device_argument)];
    if (device.isDevice()) device = c10::Device(c10::DeviceType::CPU);
  }
  return real;
}

torch::jit::Stack ContentsOfCall::run_for_real() {
  static const c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
  torch::jit::Stack stack = real_arguments();
  const RealCalls real;
  info_.op.redispatchBoxed(cpu, &stack);
  return stack;
}

void ContentsOfCall::forget_written() noexcept {
  for (const uint16_t position : info_.tensor_arguments) {
    if (!in(info_.written_arguments, position)) continue;
    for_each_tensor(arguments_[position], [](const at::Tensor& tensor) {
      if (as_fake(tensor) != nullptr) forget_contents(storage_of(tensor));
    });
  }
}

void ContentsOfCall::run_instead(torch::jit::Stack& stack, size_t begin, c10::Device device) {
  torch::jit::Stack results = run_for_real();
  const auto faked = [&](const at::Tensor& real) {
    if (!real.defined()) return real;
    const at::Tensor fake = FakeTensorImpl::empty_strided(real.sizes(), real.strides(), real.dtype(), device);
    const RealCalls calls;
    give_contents(fake, real);
    return fake;
  };
  stack.resize(begin);
  for (c10::IValue& result : results) {
    if (result.isTensor()) {
      stack.emplace_back(faked(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : result.toListRef()) list.push_back(faked(element.toTensor()));
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(std::move(result));
    }
  }
}

void ContentsOfCall::run_after(const torch::jit::Stack& stack, size_t results) {
  if (!known_ || info_.is_view) return;
  bool few = true;
  for (size_t i = results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& fake) {
      few = few && fake.numel() <= std::min(most_elements_, most_known_elements(fake.scalar_type()));
    });
  }
  if (!few) {
    forget_written();
    return;
  }
  try {
    const torch::jit::Stack real = run_for_real();
    const RealCalls calls;
    for (const uint16_t position : info_.tensor_arguments) {
      if (!in(info_.written_arguments, position)) continue;
      for_each_tensor(arguments_[position], [](const at::Tensor& fake) { mark_known(fake); });
    }
    for (size_t i = 0; i < real.size(); ++i) {
      std::vector<at::Tensor> values;
      for_each_tensor(real[i], [&](const at::Tensor& value) { values.push_back(value); });
      size_t next = 0;
      for_each_tensor(stack[results + i], [&](const at::Tensor& fake) {
        if (next < values.size()) give_contents(fake, values[next++]);
      });
    }
    // NOLINTNEXTLINE(bugprone-empty-catch)
  } catch (const std::exception&) {
    // The CPU has no such kernel, or refuses the values: the contents are unknown, as they would be without all this.
    forget_written();
  }
}

}  // namespace shadowgraph
