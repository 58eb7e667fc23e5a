// Kernels that scaled_dot_product_attention may take.
//
//     FakeTensorOptions options;
//     allow_only(options.profile.emplace(), AttentionKernel::kFlash);      // others are not there: it, or an error
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceProfile;  // shadowgraph/capture/fake.h

// kDevices: what PyTorch takes there.
enum class AttentionKernel : uint8_t { kDevices, kFlash, kEfficient, kCudnn, kMath };
constexpr auto enum_names(AttentionKernel) {
  return names_of<AttentionKernel>({{AttentionKernel::kDevices, "device"},
                                    {AttentionKernel::kFlash, "flash"},
                                    {AttentionKernel::kEfficient, "efficient"},
                                    {AttentionKernel::kCudnn, "cudnn"},
                                    {AttentionKernel::kMath, "math"}});
}

// Leaves the profile as it is for kDevices.
void allow_only(DeviceProfile& profile, AttentionKernel kernel);

}  // namespace shadowgraph
