// Whole files: nothing is ever left half-written.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace shadowgraph {

// Writes to a temporary file beside `path`, then renames it; on failure `path` is as it was. A link is followed, and what
// is no regular file (/dev/stdout, a pipe) is written to directly. Throws FileError.
void write_file(const std::string& path, std::string_view content);
// The same in pieces, for what is too large to hold twice.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);
// Throws FileError.
std::string read_file(const std::string& path);

}  // namespace shadowgraph
