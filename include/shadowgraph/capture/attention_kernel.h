// Selection of the kernel of scaled_dot_product_attention.
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceProfile;  // shadowgraph/capture/fake.h

// kDevice: the kernel that PyTorch chooses for the device.
enum class AttentionKernel : uint8_t { kDevice, kFlash, kEfficient, kCudnn, kMath };
constexpr auto enum_names(AttentionKernel) {
  return names_in_order<AttentionKernel>("device", "flash", "efficient", "cudnn", "math");
}

// Disables all other kernels in the profile. No effect for kDevice.
void allow_only(DeviceProfile& profile, AttentionKernel kernel);

}  // namespace shadowgraph
