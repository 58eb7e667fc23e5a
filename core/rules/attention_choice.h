// Which kernel eager's scaled dot product attention would run on the pretended device.
#pragma once

#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/DeviceType.h>

namespace shadowgraph::rules {

// Answers for CUDA, XPU and MPS, from the operands and the profiled device. Throws eager's error if no kernel is left.
at::SDPBackend choose_attention_kernel(c10::DeviceType device, const sdp::sdp_params& params);

}  // namespace shadowgraph::rules
