// The texts of graphs in tests are those of libtorch 2.13.0. What is compared with a text that this process writes, whose
// first line says its own version, goes through here.
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
