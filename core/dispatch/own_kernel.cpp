// How a kernel of the user's own runs, and where its results are.
#include "core/dispatch/own_kernel.h"

#include <algorithm>
#include <optional>

#include "core/dispatch/call.h"
#include "core/fake/converter.h"
#include "core/fake/dispatch_keys.h"
#include "core/fake/known_contents.h"
#include "core/fake/literals.h"
#include "core/fake/pretended_devices.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

bool runs_own_kernel(const OperatorInfo& info) {
  if (info.rule) return info.rule->sees_devices;
  // It may have been registered since.
  return info.is_own && (info.route == Route::kMeta || info.route == Route::kNone) &&
         info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta) && has_fake_kernel(info.name);
}

DeviceRule device_rule_of(const OperatorInfo& info, bool own_kernel) {
  return own_kernel && !info.rule && !info.devices ? DeviceRule::kFirst : info.device_rule;
}

OwnKernelScope::OwnKernelScope(ModeState* mode)
    : mode_(mode),
      kernel_depth_(std::exchange(thread_state.kernel_depth, 0)),
      outer_(std::exchange(thread_state.in_own_kernel, true)),
      keys_(*thread_state.dispatch_keys) {
  if (mode_ != nullptr) {
    // Only a mode of one thread has observers, so nobody else's calls are lost.
    if (mode_->observer != nullptr) observer_ = std::exchange(mode_->observer, nullptr);
    if (mode_->saved_tensors != nullptr) saved_tensors_ = std::exchange(mode_->saved_tensors, nullptr);
  }
  // Composites choose their kernels by the pretended device, as in a program.
  thread_state.dispatch_keys->set_excluded(keys_.excluded() - c10::DispatchKeySet(kCompositeKey));
}

OwnKernelScope::~OwnKernelScope() {
  close_open_literal();
  *thread_state.dispatch_keys = keys_;
  if (observer_ != nullptr) mode_->observer = observer_;
  if (saved_tensors_ != nullptr) mode_->saved_tensors = saved_tensors_;
  thread_state.in_own_kernel = outer_;
  thread_state.kernel_depth = kernel_depth_;
}

namespace {

c10::StorageImpl* storage_behind(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// The tensors of an argument, in order; those of a list that are absent, too.
template <class F>
void for_each_operand(const c10::IValue& argument, F&& f) {
  if (argument.isTensor()) {
    f(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) for_each_operand(element, f);
  }
}

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
    forget_contents(*storage_behind(result));
  }

 private:
  void wrap(at::Tensor& result, c10::Device where) const { wrap_result(result, where, watches_size_reads(mode_)); }

  const FakeTensorImpl* sharing_storage(const at::Tensor& result) const {
    const FakeTensorImpl* found = nullptr;
    for (const uint16_t position : info_.tensor_arguments) {
      for_each_operand(operands_[position], [&](const at::Tensor& operand) {
        if (found != nullptr || !operand.defined() || !is_fake(operand)) return;
        if (storage_behind(operand) == storage_behind(result)) found = as_fake(operand);
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
    for_each_operand(argument, [&](const at::Tensor& operand) {
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
  for (size_t i = results; i < stack.size(); ++i) {
    c10::IValue& result = stack[i];
    if (result.isTensor()) {
      at::Tensor tensor = std::move(result).toTensor();
      places.place(tensor, i - results, 0);
      result = std::move(tensor);
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> list = result.toTensorList();
      for (size_t j = 0; j < list.size(); ++j) {
        at::Tensor element = list.get(j);
        places.place(element, i - results, j);
        list.set(j, std::move(element));
      }
    }
  }
  for (const uint16_t position : info.tensor_arguments) {
    if (position >= 64 || ((info.touched_arguments >> position) & 1) == 0) continue;
    for_each_operand(operands[position], [](const at::Tensor& operand) {
      if (operand.defined() && is_fake(operand)) forget_contents(*storage_behind(operand));
    });
  }
}

}  // namespace shadowgraph
