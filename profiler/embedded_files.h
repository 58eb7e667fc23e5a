// Gives text files that are compiled in (cmake/embed.cmake): figures of devices and of links, the page of reports.
#pragma once

#include <span>
#include <string_view>

namespace shadowgraph {

struct EmbeddedFile {
  std::string_view name;  // "h100", of h100.json; others with their ending
  std::string_view text;
};
std::span<const EmbeddedFile> device_files();        // profiler/time/devices/
std::span<const EmbeddedFile> interconnect_files();  // profiler/communication/interconnects/
std::span<const EmbeddedFile> page_files();          // viz/page/dist/

}  // namespace shadowgraph
