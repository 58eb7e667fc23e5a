#include "shadowgraph/attention_kernel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"

namespace shadowgraph {

constexpr std::array<std::string_view, 5> kWords{"device", "flash", "efficient", "cudnn", "math"};

std::string_view to_string(AttentionKernel kernel) { return kWords[static_cast<size_t>(kernel)]; }

AttentionKernel parse_attention_kernel(std::string_view text) {
  const auto* const found = std::ranges::find(kWords, text);
  if (found != kWords.end()) return static_cast<AttentionKernel>(found - kWords.begin());
  throw Error(fmt::format("there is no kernel of attention '{}'; there are {}", text, fmt::join(kWords, ", ")));
}

void allow_only(DeviceProfile& profile, AttentionKernel kernel) {
  if (kernel == AttentionKernel::kDevices) return;
  profile.flash_attention = kernel == AttentionKernel::kFlash;
  profile.efficient_attention = kernel == AttentionKernel::kEfficient;
  profile.cudnn_attention = kernel == AttentionKernel::kCudnn;
  profile.math_attention = kernel == AttentionKernel::kMath;
}

}  // namespace shadowgraph
