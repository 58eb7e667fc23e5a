#include "core/fake/fake_tensor_mode.h"

#include <c10/core/AutogradState.h>

#include "core/fake/converter.h"
#include "core/fake/dispatch_keys.h"
#include "core/fake/errors.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"
#include "core/fake/process_state.h"
#include "core/fake/thread_state.h"

namespace shadowgraph {
namespace {

const c10::DispatchKeySet kModeKeys = c10::DispatchKeySet(kFakeKey) | c10::DispatchKeySet(kCompositeKey);

c10::impl::PODLocalDispatchKeySet keys_with_mode(bool on) {
  const auto local = c10::impl::tls_local_dispatch_key_set();
  c10::impl::PODLocalDispatchKeySet changed;
  changed.set_included(on ? local.included_ | kModeKeys : local.included_ - kModeKeys);
  changed.set_excluded(local.excluded_);
  return changed;
}

std::unique_ptr<ModeState> make_state(const FakeTensorOptions& options) {
  c10::Device device = options.device;
  if (!device.is_cpu() && !device.is_cuda() && !device.is_meta()) {
    throw Error("fake tensors can pretend to be on cpu, cuda or meta, not on " + device.str());
  }
  device = with_index(device);
  install_process_state();
  if (device.is_cuda()) check_cuda_can_be_pretended();
  auto state = std::make_unique<ModeState>();
  state->default_device = device;
  state->profile = options.profile;
  state->map_devices_to_default = options.map_devices_to_default;
  state->data_sizes.give(options.data_sizes);
  return state;
}

}  // namespace

FakeTensorMode::FakeTensorMode(FakeTensorOptions options)
    : state_(make_state(options)),
      outer_(std::exchange(thread_state.mode, state_.get())),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

FakeTensorMode::~FakeTensorMode() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_multithreading_);
  thread_state.mode = outer_;
}

at::Tensor FakeTensorMode::from_real(const at::Tensor& real, std::optional<c10::Device> device) {
  return fake_of_real(real, state_.get(), device);
}

std::atomic<uint32_t> lasting_modes{0};
std::atomic<FindLastingMode> find_lasting_mode{nullptr};

UnfakeGuard::UnfakeGuard()
    : suspended_(std::exchange(thread_state.mode, nullptr)),
      observer_(suspended_ != nullptr ? suspended_->observer : nullptr),
      keys_(keys_with_mode(false)) {
  if (observer_ != nullptr) observer_->mode_suspended();
}

UnfakeGuard::~UnfakeGuard() {
  if (observer_ != nullptr) observer_->mode_resumed();
  thread_state.mode = suspended_;
}

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {
  const ModeState* mode = thread_state.mode;
  if (mode != nullptr && mode->observer != nullptr) mode->observer->size_read(tensor, what, dimension);
}

}  // namespace shadowgraph
