// A text file that is compiled in: cmake/embed.cmake makes a function that gives those of a folder.
#pragma once

#include <string_view>

namespace shadowgraph {

struct EmbeddedFile {
  std::string_view name;  // "h100", of h100.json; others with their ending
  std::string_view text;
};

}  // namespace shadowgraph
