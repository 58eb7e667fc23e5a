// A text file embedded in the library: cmake/embed.cmake generates a function that returns the files of a folder.
#pragma once

#include <string_view>

namespace shadowgraph {

struct EmbeddedFile {
  std::string_view name;  // file name, without the extension .json: "h100"
  std::string_view text;
};

}  // namespace shadowgraph
