#include <c10/core/AutogradState.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "core/dispatch/call.h"
#include "core/fake/converter.h"
#include "core/fake/dispatch_keys.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/literals.h"
#include "core/fake/mode_state.h"
#include "core/fake/pretended_devices.h"
#include "core/fake/thread_state.h"
#include "core/mode/mode_options.h"
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

std::unique_ptr<ModeState> make_state(FakeTensorOptions options) {
  if (!options.device) options.device = c10::Device(c10::DeviceType::CPU);
  if (!options.profile) options.profile.emplace();
  if (!options.real_tensors) options.real_tensors = RealTensors::kConvert;
  fake_key_set(*options.device);  // throws for what cannot be pretended
  check_machine(*options.profile, *options.device);
  install_process_state();
  auto state = std::make_unique<ModeState>();
  state->default_device = *options.device;
  state->data_sizes.give(options.data_sizes);
  state->data_sizes.give(options.data_size_hint);
  state->host_answers.give(options.host_reads);
  state->data_sizes.assume_masks_full(options.host_reads.masks_full);
  state->options = std::move(options);
  static std::atomic<uint32_t> last_id{0};
  state->id = ++last_id;
  return state;
}

// Lists the modes there are, for tensors that know theirs by number.
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
  if (mode != nullptr) keep_device_guards();
  thread_state.mode = mode;
  thread_state.mode_id = mode != nullptr ? mode->id : 0;
}

}  // namespace

FakeTensorMode::FakeTensorMode(FakeTensorOptions options)
    : state_(make_state(std::move(options))),
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

const DeviceProfile& FakeTensorMode::profile() const { return state_->profile(); }

at::Tensor FakeTensorMode::from_real(const at::Tensor& real, std::optional<c10::Device> device) {
  if (!real.defined()) return real;
  const FakeTensorImpl* fake = as_fake(real);
  if (fake != nullptr && (fake->mode_id() == state_->id || fake->mode_id() == 0)) return real;
  return new_fake_of(real, state_.get(), device);
}

void FakeTensorMode::forget(const c10::TensorImpl* real) { forget_fakes_of(real, *state_); }

FakeTensorModeScope::FakeTensorModeScope(FakeTensorMode& mode)
    : outer_(thread_state.mode),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  if (state_of(mode).observer != nullptr && thread_state.mode != &state_of(mode)) {
    throw Error(
        "this mode records, and a capture is of the thread that began it: give every thread a FakeTensorMode or a "
        "CaptureSession of its own");
  }
  enter(&state_of(mode));
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

std::optional<FakeTensorOptions> options_of_mode(uint32_t id) {
  Modes& modes = Modes::all();
  const std::lock_guard lock(modes.mutex);
  const auto mode = modes.by_id.find(id);
  return mode == modes.by_id.end() ? std::nullopt : std::optional(state_of(*mode->second).options);
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
      throw ModeMismatchError(
          "these tensors are of two fake tensor modes; convert some of them with FakeTensorMode::from_real");
    }
    found = mode->second;
  }
  if (found != nullptr || thread_state.mode == nullptr) return found;
  Modes& modes = Modes::all();
  const std::lock_guard lock(modes.mutex);
  const auto mode = modes.by_id.find(thread_state.mode->id);
  return mode == modes.by_id.end() ? nullptr : mode->second;
}

std::optional<at::Tensor> known_contents(const at::Tensor& fake) {
  if (!is_fake(fake)) return std::nullopt;
  close_open_literal();
  const std::optional<at::Tensor> value = known_value(fake);
  if (value) note_read(assumptions_of(fake));
  const RealCalls real;
  return value ? std::optional(value->resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous)) : std::nullopt;
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
