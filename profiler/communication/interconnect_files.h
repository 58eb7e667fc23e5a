// The files of profiler/communication/interconnects/, which are compiled in (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace shadowgraph {

struct InterconnectFile {
  std::string_view name;  // "h100", of h100.json
  std::string_view text;
};
std::span<const InterconnectFile> interconnect_files();

}  // namespace shadowgraph
