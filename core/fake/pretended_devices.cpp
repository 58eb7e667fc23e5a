#include "core/fake/pretended_devices.h"

#include <limits>
#include <string>

#include "core/fake/any_machine.h"
#include "core/fake/error_translation.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

constexpr int kMostDevices = std::numeric_limits<c10::DeviceIndex>::max();

[[noreturn]] void refuse_beyond(c10::Device device, int count) {
  const std::string remedy =
      "; a mode with another DeviceProfile::device_count (in Python sg.fake(device_count=)) pretends another machine";
  if (count == 0) throw NoSuchDeviceError(device.str() + ": the pretended machine has no accelerators" + remedy);
  throw NoSuchDeviceError(device.str() + ": invalid device ordinal, the pretended machine has " +
                          std::to_string(count) + " of them" + remedy);
}

}  // namespace

void refuse_device(c10::Device device, const ModeState& mode) {
  refuse_beyond(device, devices_of(device.type(), mode));
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
  if (profile.device_count < 0 || profile.device_count > kMostDevices) {
    throw Error("DeviceProfile::device_count is " + std::to_string(profile.device_count) + "; it is 0 to " +
                std::to_string(kMostDevices));
  }
  ModeState machine;
  machine.options.profile = profile;
  // Without an index it is the current one, of which there must be one.
  check_exists(c10::Device(device.type(), std::max(device.index(), c10::DeviceIndex{0})), &machine);
}

FakeTensorOptions of_any_machine(FakeTensorOptions options) {
  if (!options.profile) options.profile.emplace();
  options.profile->device_count = kMostDevices;
  return options;
}

}  // namespace shadowgraph
