#include <c10/core/AutogradState.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/dispatch/call.h"
#include "core/fake/converter.h"
#include "core/fake/dispatch_keys.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "core/process/process_state.h"
#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"

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
  fake_key_set(device);  // throws for what cannot be pretended
  install_process_state();
  if (device.is_cuda()) check_cuda_can_be_pretended();
  auto state = std::make_unique<ModeState>();
  state->default_device = device;
  state->profile = options.profile;
  state->map_devices_to_default = options.map_devices_to_default;
  state->data_sizes.give(options.data_sizes);
  state->data_sizes.give(options.data_size_hint);
  state->real_tensors = options.real_tensors;
  state->unknown_operators_on_zeros = options.unknown_operators_on_zeros;
  static std::atomic<uint32_t> last_id{0};
  state->id = ++last_id;
  return state;
}

// The modes there are, for tensors that know theirs by number.
struct Modes {
  std::mutex mutex;
  std::unordered_map<uint32_t, FakeTensorMode*> by_id;
  static Modes& all() {
    static auto* modes = new Modes;
    return *modes;
  }
};

void enter(ModeState* mode) {
  close_open_literal();
  thread_state.mode = mode;
  thread_state.mode_id = mode != nullptr ? mode->id : 0;
}

}  // namespace

FakeTensorMode::FakeTensorMode(FakeTensorOptions options)
    : state_(make_state(options)),
      outer_(thread_state.mode),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  {
    Modes& modes = Modes::all();
    const std::lock_guard lock(modes.mutex);
    modes.by_id.emplace(state_->id, this);
  }
  enter(state_.get());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

FakeTensorMode::~FakeTensorMode() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_multithreading_);
  enter(outer_);
  Modes& modes = Modes::all();
  const std::lock_guard lock(modes.mutex);
  modes.by_id.erase(state_->id);
}

at::Tensor FakeTensorMode::from_real(const at::Tensor& real, std::optional<c10::Device> device) {
  if (!real.defined()) return real;
  const FakeTensorImpl* fake = as_fake(real);
  if (fake != nullptr && (fake->mode_id() == state_->id || fake->mode_id() == 0)) return real;
  return new_fake_of(real, state_.get(), device);
}

FakeTensorModeScope::FakeTensorModeScope(FakeTensorMode& mode)
    : outer_(thread_state.mode),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  if (mode.state().observer != nullptr && thread_state.mode != &mode.state()) {
    throw Error(
        "this mode records, and a capture is of the thread that began it: give every thread a FakeTensorMode or a "
        "CaptureSession of its own");
  }
  enter(&mode.state());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

FakeTensorModeScope::~FakeTensorModeScope() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_multithreading_);
  enter(outer_);
}

std::atomic<uint32_t> lasting_modes{0};
std::atomic<FindLastingMode> find_lasting_mode{nullptr};

UnfakeGuard::UnfakeGuard()
    : suspended_(thread_state.mode),
      observer_(suspended_ != nullptr ? suspended_->observer : nullptr),
      keys_(keys_with_mode(false)) {
  enter(nullptr);
  if (observer_ != nullptr) observer_->mode_suspended();
}

UnfakeGuard::~UnfakeGuard() {
  if (observer_ != nullptr) observer_->mode_resumed();
  enter(suspended_);
}

FakeTensorMode* detect_fake_mode(at::TensorList tensors) {
  FakeTensorMode* found = nullptr;
  for (const at::Tensor& tensor : tensors) {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr || fake->mode_id() == 0) continue;
    Modes& modes = Modes::all();
    const std::lock_guard lock(modes.mutex);
    const auto mode = modes.by_id.find(fake->mode_id());
    if (mode == modes.by_id.end()) continue;
    if (found != nullptr && found != mode->second) {
      throw Error("these tensors are of two fake tensor modes; convert some of them with FakeTensorMode::from_real");
    }
    found = mode->second;
  }
  if (found != nullptr || thread_state.mode == nullptr) return found;
  Modes& modes = Modes::all();
  const std::lock_guard lock(modes.mutex);
  const auto mode = modes.by_id.find(thread_state.mode->id);
  return mode == modes.by_id.end() ? nullptr : mode->second;
}

std::string to_string(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  const FakeTensorImpl* fake = as_fake(tensor);
  std::string text = fake != nullptr ? "fake " : "real ";
  text += c10::toString(tensor.scalar_type());
  text += "[";
  for (size_t i = 0; i < tensor.sizes().size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(tensor.sizes()[i]);
  text += "] on " + (fake != nullptr ? fake->pretended_device() : tensor.device()).str();
  if (tensor.requires_grad()) text += ", requires_grad";
  return text;
}

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {
  const ModeState* mode = thread_state.mode;
  if (mode != nullptr && mode->observer != nullptr) mode->observer->size_read(tensor, what, dimension);
}

}  // namespace shadowgraph
