// Whole files: nothing is ever left half-written.
#pragma once

#include <string>
#include <string_view>

namespace shadowgraph {

// Writes to a temporary file beside `path`, then renames it; on failure `path` is as it was. Throws FileError.
void write_file(const std::string& path, std::string_view content);
// Throws FileError.
std::string read_file(const std::string& path);

}  // namespace shadowgraph
