// Simulated accelerators: which devices a mode's machine has, and their streams. Internal to core/.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/fake/mode_state.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

// Sets the maximum number of devices, for graphs and programs whose machine is unknown.
FakeTensorOptions with_all_devices(FakeTensorOptions options = {});

// Returns the number of devices of a type.
inline c10::DeviceIndex devices_of(c10::DeviceType type, const ModeState& mode) {
  const int count = mode.profile().device_count;
  return static_cast<c10::DeviceIndex>(type == c10::DeviceType::MPS ? std::min(count, 1) : count);
}

// Returns the number of devices in this thread's fake mode; 0 without one.
inline c10::DeviceIndex simulated_devices_of(c10::DeviceType type) {
  const ModeState* mode = active_fake_mode();
  return mode == nullptr ? c10::DeviceIndex{0} : devices_of(type, *mode);
}

[[noreturn]] void refuse_device(c10::Device device, const ModeState& mode);

// Throws Error for a device, with an index, that the machine of `mode` does not have. Without a mode every device is
// accepted.
inline void check_exists(c10::Device device, const ModeState* mode) {
  if (device.is_cpu() || device.is_meta() || mode == nullptr) return;
  if (device.index() >= devices_of(device.type(), *mode)) refuse_device(device, *mode);
}

// The same for this thread's mode, for calls from libtorch outside of operators: translates the error.
void check_exists_for_libtorch(c10::Device device);

// Throws Error for a profile with an invalid device count, or a device beyond it.
void check_machine(const DeviceProfile& profile, c10::Device device);

// ---- Streams of simulated devices. Nothing runs on them; device guards, c10::Event and Python's torch.cuda use them.

struct StorageContext;

// Observes stream operations. Implemented by call observers (core/fake/call_observer.h) that support it.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  // Returns an id for the work issued on `stream` so far; 0 if there is none.
  virtual uint64_t event_recorded(const c10::Stream& stream) = 0;
  // Later work on `stream` waits for an event.
  virtual void stream_waits(const c10::Stream& stream, uint64_t event) = 0;
  // The memory is used on a stream other than its own: Tensor::record_stream.
  virtual void memory_used_on(const StorageContext& storage, const c10::Stream& stream) = 0;
};

// Returns the stream observer of this thread's mode; nullptr if there is none.
StreamObserver* stream_observer();

c10::Stream new_stream(c10::Device device);
c10::Stream current_stream(c10::Device device);
// Returns the previously current stream of that device.
c10::Stream exchange_current_stream(c10::Stream stream);
// Returns the current streams that are not default streams, at most one per device.
const std::vector<c10::Stream>& non_default_streams();

// Makes device 0 and the default streams current on this thread, as on a new machine.
void reset_simulated_devices();

uint64_t record_event(const c10::Stream& stream);
void wait_for_event(const c10::Stream& stream, uint64_t event);
// `data`: of a fake tensor's storage; others are ignored.
void use_memory_on(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace shadowgraph
