// Graph texts in tests are written for libtorch 2.13.0. These functions convert them for comparison with text written
// by this process, whose first line has the current version.
#pragma once

#include <torch/headeronly/version.h>

#include <string>
#include <string_view>

namespace shadowgraph {

inline std::string of_this_libtorch(std::string text) {
  constexpr std::string_view kWritten = "libtorch 2.13.0", kHere = "libtorch " TORCH_VERSION;
  for (size_t at = text.find(kWritten); at != text.npos; at = text.find(kWritten, at + kHere.size())) {
    text.replace(at, kWritten.size(), kHere);
  }
  return text;
}

}  // namespace shadowgraph
