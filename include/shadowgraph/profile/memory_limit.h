// How much memory a device has for a program: a device's name, or a size.
//
//     MemoryLimit::parse("l4").bytes;        // 23612293120, which its driver gives to programs
//     MemoryLimit::parse("24GiB").title;     // "24GiB"
//     MemoryLimit::parse("24");              // throws Error: 24 of what?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;  // shadowgraph/profile/device_spec.h

struct MemoryLimit {
  int64_t bytes = 0;
  std::string device;  // "l4"; empty for a size
  std::string title;   // for people: "NVIDIA L4 24 GB", or the size as it was given
  bool asked = true;   // false: nobody named it, it is the device that times are estimated for
  // What a size may have been meant for: cards are sold by sizes that their programs never have. Empty: nothing.
  std::string note;

  // Takes a size with its unit ("24GiB", "80 GB", "1.5TB"), or a number of bytes. Takes a name of `shadowgraph list
  // devices`, however it is spelled ("RTX 4090"), or a file with a device's figures. Throws Error for anything else.
  static MemoryLimit parse(const std::string& text);
  static MemoryLimit of_bytes(int64_t bytes);
  // Empty for a device without figures of its memory.
  static std::optional<MemoryLimit> of(const DeviceSpec& spec);
};

// "24GiB", "80 GB", "1073741824": empty for anything else.
std::optional<int64_t> parse_bytes(std::string_view text);

}  // namespace shadowgraph
