#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/fake/converter.h"
#include "core/fake/dispatch/call.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode/modes.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/mode_state.h"
#include "core/fake/simulated_devices.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/language_bindings.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// Describes a conflict between two sets of options; fields that either leaves open do not conflict.
std::optional<std::string> difference(const FakeTensorOptions& one, const FakeTensorOptions& other) {
  if (one.device && other.device && with_index(*one.device) != with_index(*other.device)) {
    return "device " + one.device->str() + " and " + other.device->str();
  }
  if (one.profile && other.profile && *one.profile != *other.profile) {
    return "device profile '" + one.profile->name + "' and " +
           (one.profile->name == other.profile->name ? "another of that name" : "'" + other.profile->name + "'");
  }
  return std::nullopt;
}

void complete(FakeTensorOptions& given, FakeTensorOptions around) {
  if (!given.device) given.device = around.device;
  if (!given.profile) given.profile = std::move(around.profile);
  given.map_devices_to_default |= around.map_devices_to_default;
  given.data_sizes.merge(around.data_sizes);
  if (!given.data_size_hint) given.data_size_hint = std::move(around.data_size_hint);
  given.host_reads.values.merge(around.host_reads.values);
  if (!given.host_reads.hint) given.host_reads.hint = std::move(around.host_reads.hint);
  given.host_reads.finite |= around.host_reads.finite;
  given.host_reads.masks_full |= around.host_reads.masks_full;
  if (!given.contents_budget) given.contents_budget = around.contents_budget;
  if (!given.real_tensors) given.real_tensors = around.real_tensors;
  given.allow_fallback_kernels |= around.allow_fallback_kernels;
}

struct ModeOfTensors {
  FakeTensorOptions options;
  bool of_mode = false;  // the mode still exists; otherwise only the device is known
};

// Returns the merged options of the tensors' modes; nullopt if none is fake. If the modes no longer exist, only the
// device common to all tensors is known.
std::optional<ModeOfTensors> mode_of_tensors(at::TensorList tensors) {
  std::optional<ModeOfTensors> found;
  std::unordered_set<uint32_t> seen;
  bool on_one_device = true;
  std::optional<c10::Device> device;
  for (const at::Tensor& tensor : tensors) {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (fake == nullptr) continue;
    if (!found) found.emplace();
    on_one_device = on_one_device && (!device || *device == fake->simulated_device());
    device = fake->simulated_device();
    if (!seen.insert(fake->mode_id()).second) continue;
    std::optional<FakeTensorOptions> options = options_of_mode(fake->mode_id());
    if (!options) continue;
    if (const auto words = difference(found->options, *options)) {
      throw Error("the module's tensors were created in two different modes: " + *words +
                  ". Create them in one mode, or convert some with FakeTensorMode::from_real");
    }
    complete(found->options, std::move(*options));
    found->of_mode = true;
  }
  if (found && !found->of_mode && on_one_device) found->options.device = device;
  return found;
}

}  // namespace

FakeTensorOptions options_around(at::TensorList own, at::TensorList inputs, FakeTensorOptions given) {
  std::optional<ModeOfTensors> around = mode_of_tensors(own);
  if (around && around->of_mode) {
    if (const auto words = difference(given, around->options)) {
      throw Error("CaptureOptions::mode conflicts with the mode that the module was created in: " + *words +
                  ". Leave it out of CaptureOptions::mode, which then inherits it from that mode, or create the module "
                  "in a matching mode");
    }
  }
  if (!around) around = mode_of_tensors(inputs);
  const ModeState* active = thread_state.mode;
  if (!around && active != nullptr && active->kind == ModeKind::kFake) around = ModeOfTensors{active->options, true};
  if (around) complete(given, std::move(around->options));
  return given;
}

void check_is_of(const ModeState& mode, const at::Tensor& tensor, const std::string& name) {
  const FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr || fake->mode_id() == mode.id) return;
  const auto options = options_of_mode(fake->mode_id());
  if (!options) return;
  if (const auto words = difference(mode.options, *options)) {
    throw Error("the capture conflicts with the mode that '" + name + "' was created in: " + *words +
                ". Pass the module to the Capture constructor, which inherits its mode, or create the module in "
                "a matching mode");
  }
}

static std::unique_ptr<ModeState> make_state(CallObserver& observer, SavedTensorObserver* saved_tensors) {
  install_process_state();
  auto state = std::make_unique<ModeState>();
  state->kind = ModeKind::kObserve;
  state->observer = &observer;
  state->saved_tensors = saved_tensors;
  return state;
}

ObserveMode::ObserveMode(CallObserver& observer, SavedTensorObserver* saved_tensors)
    : state_(make_state(observer, saved_tensors)),
      outer_(std::exchange(thread_state.mode, state_.get())),
      key_(kFakeKey) {}

ObserveMode::~ObserveMode() { thread_state.mode = outer_; }

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
  fake_key_set(*options.device);  // throws for device types that cannot be simulated
  check_machine(*options.profile, *options.device);
  install_process_state();
  auto state = std::make_unique<ModeState>();
  state->default_device = *options.device;
  state->data_sizes.add(options.data_sizes);
  state->data_sizes.add(options.data_size_hint);
  state->host_read_values.add(options.host_reads);
  state->data_sizes.assume_masks_full(options.host_reads.masks_full);
  state->options = std::move(options);
  static std::atomic<uint32_t> last_id{0};
  state->id = ++last_id;
  return state;
}

// The existing modes by id, for tensors, which store only the id of theirs.
struct Modes {
  std::mutex mutex;
  std::unordered_map<uint32_t, FakeTensorMode*> by_id;
  static Modes& all() {
    static auto* modes = new Modes;
    return *modes;
  }
  void add(uint32_t id, FakeTensorMode* mode) {
    const std::lock_guard lock(mutex);
    by_id.emplace(id, mode);
  }
  void remove(uint32_t id) {
    const std::lock_guard lock(mutex);
    by_id.erase(id);
  }
};

FakeTensorMode* find_mode(uint32_t id) {
  Modes& modes = Modes::all();
  const std::lock_guard lock(modes.mutex);
  const auto mode = modes.by_id.find(id);
  return mode == modes.by_id.end() ? nullptr : mode->second;
}

void enter(ModeState* mode) {
  close_open_literal();
  if (mode != nullptr) restore_device_guards();
  thread_state.mode = mode;
  thread_state.mode_id = mode != nullptr ? mode->id : 0;
}

}  // namespace

FakeTensorMode::FakeTensorMode(FakeTensorOptions options)
    : state_(make_state(std::move(options))),
      outer_(thread_state.mode),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  Modes::all().add(state_->id, this);
  enter(state_.get());
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

FakeTensorMode::~FakeTensorMode() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_multithreading_);
  enter(outer_);
  if (outer_ == nullptr) reset_simulated_devices();
  Modes::all().remove(state_->id);
}

const DeviceProfile& FakeTensorMode::profile() const { return state_->profile(); }

at::Tensor FakeTensorMode::from_real(const at::Tensor& real, std::optional<c10::Device> device, bool with_gradient) {
  if (!real.defined()) return real;
  const FakeTensorImpl* known = as_fake(real);
  if (known != nullptr && (known->mode_id() == state_->id || known->mode_id() == 0)) return real;
  at::Tensor fake = new_fake_of(real, state_.get(), device);
  if (with_gradient) convert_gradient(fake, real, *state_);
  return fake;
}

void FakeTensorMode::forget(const c10::TensorImpl* real) { forget_fakes_of(real, *state_); }

struct ModeIdentity {
  uint32_t id = 0;
  ConversionMemo memo;
};

std::shared_ptr<ModeIdentity> take_identity(FakeTensorMode& mode) {
  ModeState& state = state_of(mode);
  return std::make_shared<ModeIdentity>(state.id, std::exchange(state.memo, {}));
}

void give_identity(FakeTensorMode& mode, ModeIdentity& identity) {
  ModeState& state = state_of(mode);
  {
    Modes& modes = Modes::all();
    const std::lock_guard lock(modes.mutex);
    modes.by_id.erase(state.id);
    modes.by_id.emplace(identity.id, &mode);
  }
  state.id = identity.id;
  state.memo = std::exchange(identity.memo, {});
  if (thread_state.mode == &state) thread_state.mode_id = state.id;
}

FakeTensorModeScope::FakeTensorModeScope(FakeTensorMode& mode)
    : outer_(thread_state.mode),
      outer_multithreading_(c10::AutogradState::get_tls_state().get_multithreading_enabled()),
      keys_(keys_with_mode(true)) {
  if (state_of(mode).observer != nullptr && thread_state.mode != &state_of(mode)) {
    throw Error(
        "this mode is being captured, and a capture is bound to the thread that started it; create a separate "
        "FakeTensorMode or Capture for each thread");
  }
  enter(&state_of(mode));
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

FakeTensorModeScope::~FakeTensorModeScope() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(outer_multithreading_);
  enter(outer_);
}

std::atomic<uint32_t> persistent_modes{0};
std::atomic<FindPersistentMode> find_persistent_mode{nullptr};

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
    FakeTensorMode* mode = find_mode(fake->mode_id());
    if (mode == nullptr) continue;
    if (found != nullptr && found != mode) {
      throw Error(
          "the tensors belong to two different fake tensor modes; convert some of them with FakeTensorMode::from_real");
    }
    found = mode;
  }
  return found != nullptr || thread_state.mode == nullptr ? found : find_mode(thread_state.mode->id);
}

uint32_t fake_mode_id(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake == nullptr ? 0 : fake->mode_id();
}
uint32_t fake_mode_id() { return thread_state.mode_id; }
c10::Device exchange_default_device(c10::Device device) {
  ModeState* mode = thread_state.mode;
  return mode == nullptr ? c10::Device(c10::kCPU) : std::exchange(mode->default_device, device);
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
  text += "] on " + (fake != nullptr ? fake->simulated_device() : tensor.device()).str();
  if (tensor.requires_grad()) text += ", requires_grad";
  return text;
}

void note_size_read(const FakeTensorImpl& tensor, SizeRead what, int64_t dimension) noexcept {
  const ModeState* mode = thread_state.mode;
  if (mode != nullptr && mode->observer != nullptr) mode->observer->size_read(tensor, what, dimension);
}

struct FakeModule::State {
  struct Kept {
    at::Tensor tensor;
    at::Tensor gradient;
    uint32_t version = 0;
  };
  ModeState* mode = nullptr;
  std::vector<Kept> kept;
};

FakeModule::FakeModule(std::unique_ptr<State> state) : state_(std::move(state)) {}
FakeModule::FakeModule(FakeModule&&) noexcept = default;
FakeModule& FakeModule::operator=(FakeModule&& other) noexcept {
  undo();
  state_ = std::move(other.state_);
  return *this;
}
FakeModule::~FakeModule() { undo(); }

void FakeModule::undo() noexcept {
  if (!state_) return;
  for (const State::Kept& kept : state_->kept) {
    kept.tensor.mutable_grad() = kept.gradient;
    if (!kept.tensor.is_inference()) {
      c10::VariableVersion counter = torch::autograd::impl::version_counter(kept.tensor);
      counter.set_version(kept.version);
    }
    const std::lock_guard lock(state_->mode->memo_mutex);
    const auto entry = state_->mode->memo.adopted.find(kept.tensor.unsafeGetTensorImpl());
    if (entry != state_->mode->memo.adopted.end() && --entry->second == 0) state_->mode->memo.adopted.erase(entry);
  }
  state_.reset();
}

FakeModule fakeify(FakeTensorMode& mode, torch::nn::Module& module) {
  auto state = std::make_unique<FakeModule::State>();
  state->mode = &state_of(mode);
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto keep = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || is_fake(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    mode.from_real(tensor);  // may throw, so it comes before any change
    state->kept.push_back(
        {tensor, tensor.grad(), tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version())});
  };
  for (const at::Tensor& parameter : module.parameters()) keep(parameter);
  for (const at::Tensor& buffer : module.buffers()) keep(buffer);
  for (const FakeModule::State::Kept& kept : state->kept) {
    {
      const std::lock_guard lock(state->mode->memo_mutex);
      ++state->mode->memo.adopted[kept.tensor.unsafeGetTensorImpl()];
    }
    if (kept.gradient.defined()) kept.tensor.mutable_grad() = mode.from_real(kept.gradient);
  }
  return FakeModule(std::move(state));
}

}  // namespace shadowgraph
