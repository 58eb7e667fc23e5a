// What the pretended device is and can do. Hooks and rules obey it where eager would ask the driver or a library.
#pragma once

#include <cstdint>
#include <string>

namespace shadowgraph {

struct DeviceProfile {
  std::string name = "NVIDIA H100";
  int device_count = 8;  // how many fake devices of the kind exist
  int sm_major = 9;      // CUDA compute capability
  int sm_minor = 0;
  int multiprocessors = 132;
  bool cudnn = true;
  long cudnn_version = 92100;  // as cudnnGetVersion(); libtorch 2.13.0's CUDA 13.0 wheel ships cuDNN 9.21
  bool flash_attention = true;
  bool efficient_attention = true;
  // On Hopper and Blackwell with a recent cuDNN, libtorch takes cuDNN attention before flash.
  bool cudnn_attention = true;
  bool math_attention = true;

  static DeviceProfile h100() { return {}; }
  static DeviceProfile a100() {
    DeviceProfile profile;
    profile.name = "NVIDIA A100";
    profile.sm_major = 8;
    profile.sm_minor = 0;
    profile.multiprocessors = 108;
    return profile;
  }
};

}  // namespace shadowgraph
