// Which device of profiler/time/devices a title is of, as CUDA names its devices.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shadowgraph {

// "NVIDIA A100-SXM4-40GB" is "a100_40gb"; "NVIDIA GH200 480GB" is none that is known.
std::optional<std::string> device_of_title(std::string_view title);

}  // namespace shadowgraph
