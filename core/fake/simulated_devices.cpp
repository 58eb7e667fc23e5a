// Simulated devices, their streams, and the CPU capabilities of this machine.
#include "core/fake/simulated_devices.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>

#include "core/fake/mode_state.h"
#include "core/fake/storage_context.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/capture/attention_kernel.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {

// Calls an operator that reports a oneDNN capability, bypassing any active mode.
static bool onednn_supports(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!op) return false;  // a libtorch without oneDNN
  torch::jit::Stack stack;
  op->callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  return stack.at(0).toBool();
}

const CpuProfile& CpuProfile::this_machine() {
  static const CpuProfile machine{.mkldnn_bf16 = onednn_supports("mkldnn::_is_mkldnn_bf16_supported"),
                                  .mkldnn_fp16 = onednn_supports("mkldnn::_is_mkldnn_fp16_supported")};
  return machine;
}

void allow_only(DeviceProfile& profile, AttentionKernel kernel) {
  if (kernel == AttentionKernel::kDevice) return;
  profile.flash_attention = kernel == AttentionKernel::kFlash;
  profile.efficient_attention = kernel == AttentionKernel::kEfficient;
  profile.cudnn_attention = kernel == AttentionKernel::kCudnn;
  profile.math_attention = kernel == AttentionKernel::kMath;
}

constexpr int kMaxDevices = std::numeric_limits<c10::DeviceIndex>::max();

void refuse_device(c10::Device device, const ModeState& mode) {
  const int count = devices_of(device.type(), mode);
  const std::string remedy =
      "; set DeviceProfile::device_count (in Python sg.fake(device_count=)) to simulate another machine";
  if (count == 0) throw Error(device.str() + ": the simulated machine has no accelerators" + remedy);
  throw Error(device.str() + ": invalid device ordinal, the simulated machine has " + std::to_string(count) +
              " devices" + remedy);
}

void check_exists_for_libtorch(c10::Device device) {
  try {
    check_exists(device, active_fake_mode());
  } catch (const Error& error) {
    translate(error);
    throw;
  }
}

void check_machine(const DeviceProfile& profile, c10::Device device) {
  if (profile.device_count < 0 || profile.device_count > kMaxDevices) {
    throw Error("DeviceProfile::device_count is " + std::to_string(profile.device_count) + "; it must be 0 to " +
                std::to_string(kMaxDevices));
  }
  ModeState machine;
  machine.options.profile = profile;
  // A device without index is the current one, so at least one must exist.
  check_exists(c10::Device(device.type(), std::max(device.index(), c10::DeviceIndex{0})), &machine);
}

FakeTensorOptions with_all_devices(FakeTensorOptions options) {
  if (!options.profile) options.profile.emplace();
  options.profile->device_count = kMaxDevices;
  return options;
}

static std::vector<c10::Stream>& streams_of_thread() {
  thread_local std::vector<c10::Stream> streams;
  return streams;
}

const std::vector<c10::Stream>& non_default_streams() { return streams_of_thread(); }

StreamObserver* stream_observer() {
  const ModeState* mode = thread_state.mode;
  return mode == nullptr ? nullptr : dynamic_cast<StreamObserver*>(mode->observer);
}

c10::Stream new_stream(c10::Device device) {
  static std::atomic<c10::StreamId> last{0};
  return c10::Stream(c10::Stream::UNSAFE, device, ++last);
}

c10::Stream current_stream(c10::Device device) {
  for (const c10::Stream& stream : non_default_streams()) {
    if (stream.device() == device) return stream;
  }
  return c10::Stream(c10::Stream::DEFAULT, device);
}

c10::Stream exchange_current_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device());
  if (before == stream) return before;
  auto& streams = streams_of_thread();
  std::erase(streams, before);
  if (stream.id() != c10::Stream(c10::Stream::DEFAULT, stream.device()).id()) streams.push_back(stream);
  return before;
}

void reset_simulated_devices() {
  thread_state.current_device.fill(0);
  streams_of_thread().clear();
}

uint64_t record_event(const c10::Stream& stream) {
  StreamObserver* observer = stream_observer();
  return observer == nullptr ? 0 : observer->event_recorded(stream);
}

void wait_for_event(const c10::Stream& stream, uint64_t event) {
  if (event == 0) return;
  if (StreamObserver* observer = stream_observer()) observer->stream_waits(stream, event);
}

void use_memory_on(const c10::DataPtr& data, const c10::Stream& stream) {
  StreamObserver* observer = stream_observer();
  const StorageContext* storage = find_storage_context(data);
  if (observer != nullptr && storage != nullptr) observer->memory_used_on(*storage, stream);
}

}  // namespace shadowgraph
