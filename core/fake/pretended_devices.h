// Says which devices the machine has that a mode pretends. Internal to core/.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>

#include "core/fake/mode_state.h"

namespace shadowgraph {

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

// Throws NoSuchDeviceError for a device, with its index, that the machine of `mode` does not have. Without a mode nobody
// knows the machine.
inline void check_exists(c10::Device device, const ModeState* mode) {
  if (device.is_cpu() || device.is_meta() || mode == nullptr) return;
  if (device.index() >= devices_of(device.type(), *mode)) refuse_device(device, *mode);
}

// The same for this thread's mode, where libtorch asks outside of any operator: the error passes through it.
void check_exists_for_libtorch(c10::Device device);

// Throws Error for a profile with a count that no index could reach, and NoSuchDeviceError for a device beyond it.
void check_machine(const DeviceProfile& profile, c10::Device device);

}  // namespace shadowgraph
