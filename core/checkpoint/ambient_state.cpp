#include "core/checkpoint/ambient_state.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <array>

#include "core/calls/random_state.h"
#include "core/capture/recorder.h"
#include "core/fake/fake_tensor_impl.h"
#include "core/fake/mode_state.h"

namespace shadowgraph {

namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

bool is_faking() { return thread_state.mode != nullptr && thread_state.mode->kind == ModeKind::kFake; }

at::Tensor fake_state(c10::Device device) {
  return FakeTensorImpl::empty({random_state_bytes(device)}, caffe2::TypeMeta::fromScalarType(at::kByte),
                               c10::MemoryFormat::Contiguous, kCpu);
}

// Returns the state that the generator is left with; undefined if nothing is drawn here.
at::Tensor take(c10::Device device) {
  if (!is_faking()) return random_state(device);
  if (current_recorder() == nullptr) return {};
  at::Tensor state = fake_state(device);
  current_recorder()->record_function(get_random_state(), std::array{c10::IValue(device)}, state);
  return state;
}

at::Tensor exchange(c10::Device device, const at::Tensor& state) {
  if (!is_fake(state)) return is_faking() ? at::Tensor() : exchange_random_state(device, state);
  if (current_recorder() == nullptr) return {};
  at::Tensor before = fake_state(device);
  current_recorder()->record_function(exchange_random_state(), std::array{c10::IValue(state), c10::IValue(device)},
                                      before);
  return before;
}

void put_back(c10::Device device, const at::Tensor& state) {
  if (!is_fake(state)) {
    exchange_random_state(device, state);
  } else if (current_recorder() != nullptr) {
    current_recorder()->record_function(set_random_state(), std::array{c10::IValue(state), c10::IValue(device)}, {});
  }
}

}  // namespace

// ---- Autocast

AutocastState::AutocastState() : cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  size_t i = 0;
  for (const c10::DeviceType type : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    devices_[i++] = {type, at::autocast::is_autocast_enabled(type), at::autocast::get_autocast_dtype(type)};
  }
}

void AutocastState::set() const {
  for (const OfDevice& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled_);
}

// It enters and leaves as torch.autocast does: copies of weights that were cast are kept until the outermost one ends.
AutocastState::Restored::Restored(const AutocastState& state) {
  state.set();
  at::autocast::increment_nesting();
}

AutocastState::Restored::~Restored() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  before_.set();
}

// ---- Random numbers

RandomStates RandomStates::take(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::Device> devices{kCpu};
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.is_cuda()) continue;
    const c10::Device device = with_index(input.device());
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) devices.push_back(device);
  }
  RandomStates states;
  for (const c10::Device device : devices) {
    at::Tensor state = shadowgraph::take(device);
    if (state.defined()) states.states_.emplace_back(device, std::move(state));
  }
  return states;
}

RandomStates::Restored::Restored(const RandomStates& states) {
  for (const auto& [device, state] : states.states_) {
    at::Tensor before = exchange(device, state);
    if (before.defined()) before_.emplace_back(device, std::move(before));
  }
}

RandomStates::Restored::~Restored() {
  for (const auto& [device, state] : before_) put_back(device, state);
}

}  // namespace shadowgraph
