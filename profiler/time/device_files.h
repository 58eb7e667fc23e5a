// The files of profiler/time/devices/, which are compiled in (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace shadowgraph {

struct DeviceFile {
  std::string_view name;  // "h100", of h100.json
  std::string_view text;
};
std::span<const DeviceFile> device_files();

}  // namespace shadowgraph
