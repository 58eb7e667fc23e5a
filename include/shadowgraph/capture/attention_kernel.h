// Kernels that scaled_dot_product_attention may take.
//
//     FakeTensorOptions options;
//     allow_only(options.profile.emplace(), AttentionKernel::kFlash);      // others are not there: it, or an error
#pragma once

#include <cstdint>
#include <string_view>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceProfile;  // shadowgraph/capture/fake.h

// kDevices: what PyTorch takes there.
enum class AttentionKernel : uint8_t { kDevices, kFlash, kEfficient, kCudnn, kMath };
std::string_view to_string(AttentionKernel kernel);             // "device", "flash", "efficient", "cudnn", "math"
AttentionKernel parse_attention_kernel(std::string_view text);  // throws Error

// Leaves the profile as it is for kDevices.
void allow_only(DeviceProfile& profile, AttentionKernel kernel);

}  // namespace shadowgraph
