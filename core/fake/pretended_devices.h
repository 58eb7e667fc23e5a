// Makes the options of a mode for what a graph names, or a real program: devices of a machine that nobody described.
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

// There are all devices that can be, whatever their profile.
FakeTensorOptions of_any_machine(FakeTensorOptions options = {});

// Says which devices the machine has that a mode pretends. Internal to core/.

// How many devices of an accelerator's kind there are.
inline c10::DeviceIndex devices_of(c10::DeviceType type, const ModeState& mode) {
  const int count = mode.profile().device_count;
  return static_cast<c10::DeviceIndex>(type == c10::DeviceType::MPS ? std::min(count, 1) : count);
}

// Likewise in the mode that makes tensors fake on this thread; without one, none.
inline c10::DeviceIndex pretended_devices_of(c10::DeviceType type) {
  const ModeState* mode = active_fake_mode();
  return mode == nullptr ? c10::DeviceIndex{0} : devices_of(type, *mode);
}

[[noreturn]] void refuse_device(c10::Device device, const ModeState& mode);

// Throws Error for a device, with its index, that the machine of `mode` does not have. Without a mode nobody
// knows the machine.
inline void check_exists(c10::Device device, const ModeState* mode) {
  if (device.is_cpu() || device.is_meta() || mode == nullptr) return;
  if (device.index() >= devices_of(device.type(), *mode)) refuse_device(device, *mode);
}

// The same for this thread's mode, where libtorch asks outside of any operator: the error passes through it.
void check_exists_for_libtorch(c10::Device device);

// Throws Error for a profile with a count that no index could reach, or a device beyond it.
void check_machine(const DeviceProfile& profile, c10::Device device);

// The streams of pretended devices: which one is current on this thread, and who is told what programs do with them.
//
// Nothing runs on them. Device guards, c10::Event and what Python's torch.cuda is told end here.

struct StorageContext;

// Is told what the program does with streams: an observer of calls (core/fake/call_observer.h) that is one of these,
// too.
class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  // Returns a number for all that `stream` has been given so far; 0: for nothing.
  virtual uint64_t event_recorded(const c10::Stream& stream) = 0;
  // What `stream` is given from here on waits for an event.
  virtual void stream_waits(const c10::Stream& stream, uint64_t event) = 0;
  // The memory is used on another stream than it was taken on: Tensor::record_stream.
  virtual void memory_used_on(const StorageContext& storage, const c10::Stream& stream) = 0;
};

// Returns the observer of the mode that is active on this thread; nullptr: none that asks for streams.
StreamObserver* stream_observer();

c10::Stream new_stream(c10::Device device);
c10::Stream current_stream(c10::Device device);
// Returns the stream that was current on that device.
c10::Stream exchange_current_stream(c10::Stream stream);
// Returns the current streams that are no default ones, one for a device.
const std::vector<c10::Stream>& other_streams();

uint64_t record_event(const c10::Stream& stream);
void wait_for_event(const c10::Stream& stream, uint64_t event);
// `data`: of the storage of a fake tensor; others are nobody's.
void use_memory_on(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace shadowgraph
